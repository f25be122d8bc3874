//! Requests of `vale-ctl`: attaching, detaching and listing ports, and persistent ports.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::{AttachedCard, Switch, ValePort};
use crate::abi::bodies::{
    Polling, PortHeader, Register, ValeAttach, ValeDetach, ValeList, ValeNewInterface, modes,
    polling_modes,
};
use crate::abi::{PortKind, PortName};
use crate::engine::EngineOptions;
use crate::engine::adapter::Adapter;
use crate::engine::card::Card;
use crate::engine::control::Control;

/// Returns switch and port of a name.
fn parts(name: &PortName) -> Result<(&str, &str), Errno> {
    match name.kind()? {
        PortKind::Vale { switch, port } if !port.is_empty() => Ok((switch, port)),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns true if an interface has this name.
fn is_interface(name: &str, options: &EngineOptions) -> bool {
    Card::find(name, &EngineOptions { log: None, ..options.clone() }).is_ok()
}

impl Control {
    /// Returns a port of a switch, and makes it, with the switch, if it does not exist. A persistent port with
    /// its name is attached.
    ///
    /// # Errors
    /// EINVAL: the port is an interface, which must be attached. EBUSY: the persistent port is attached elsewhere.
    /// ENOMEM: no room.
    pub(in crate::engine) fn vale(
        &mut self,
        name: &str,
        (switch, port): (&str, &str),
        wanted: &Register,
        options: &EngineOptions,
    ) -> Result<Arc<Adapter>, Errno> {
        if self.attached.contains_key(name) {
            return Err(Errno::EBUSY);
        }
        if let Some(adapter) = self.existing(name) {
            return Ok(adapter);
        }
        if port.is_empty() {
            return Err(Errno::EINVAL);
        }
        let persistent = self.persistent.get(port).cloned();
        let key = if persistent.is_some() { port } else { name };
        let adapter = match persistent {
            Some(adapter) => adapter,
            None if is_interface(port, options) => {
                options.say(format_args!(
                    "{name}: {port} is an interface: attach it (vale-ctl -a {name})"
                ));
                return Err(Errno::EINVAL);
            }
            None => self.vale_port(name, wanted, options)?,
        };
        let vale_port = self.vale_port_of(key).ok_or(Errno::EINVAL)?;
        let attached = vale_port.attachment().as_ref().map(|at| at.switch.name == switch);
        match attached {
            Some(true) => {}
            Some(false) => return Err(Errno::EBUSY),
            None => {
                let switch = self.switch(switch)?;
                vale_port.attach(&switch)?;
            }
        }
        Ok(adapter)
    }

    /// Returns the size of the header in front of a port's packets: only VALE ports have one.
    ///
    /// # Errors
    /// As [`adapter`](Self::adapter); EINVAL without a name.
    pub(in crate::engine) fn port_header(
        &mut self,
        name: &PortName,
        body: &mut PortHeader,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        if name.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.adapter(name, &Register::default(), options)?;
        let port = self.vale_port_of(&self.canonical(name)?);
        // Relaxed, as in `ValePort::header`.
        body.header_bytes = port.map_or(0, |port| port.header_bytes.load(Ordering::Relaxed));
        Ok(())
    }

    /// Sets the size of the header in front of a VALE port's packets: 0, 10 or 12 bytes.
    ///
    /// # Errors
    /// EINVAL: another size. ENXIO: no such VALE port.
    pub(in crate::engine) fn set_port_header(
        &mut self,
        name: &PortName,
        body: &PortHeader,
    ) -> Result<(), Errno> {
        if ![0, 10, 12].contains(&body.header_bytes) {
            return Err(Errno::EINVAL);
        }
        let port = self.vale_port_of(&self.canonical(name)?).ok_or(Errno::ENXIO)?;
        port.header_bytes.store(body.header_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn vale_port_of(&self, name: &str) -> Option<Arc<ValePort>> {
        self.vale_ports.get(name)?.upgrade()
    }

    /// Returns the switch of a name, and makes it if it does not exist.
    fn switch(&mut self, name: &str) -> Result<Arc<Switch>, Errno> {
        if let Some((_, switch)) = self.find_switch(name) {
            return Ok(switch);
        }
        let free = self.switches.iter_mut().find(|it| it.as_ref().is_none_or(|it| it.is_empty()));
        let switch = Switch::new(name);
        *free.ok_or(Errno::ENOMEM)? = Some(Arc::clone(&switch));
        Ok(switch)
    }

    /// Returns a switch that has ports, and its index.
    fn find_switch(&self, name: &str) -> Option<(u16, Arc<Switch>)> {
        (0..).zip(&self.switches).find_map(|(index, switch)| {
            let switch = switch.as_ref().filter(|it| it.name == name && !it.is_empty())?;
            Some((index, Arc::clone(switch)))
        })
    }

    /// Attaches a persistent port or a card to a switch; a persistent port to two at most.
    ///
    /// # Errors
    /// EINVAL: no such port, or not a name of a switch's port. EBUSY: a file has it, or it is attached already.
    pub(in crate::engine) fn vale_attach(
        &mut self,
        name: &PortName,
        body: &mut ValeAttach,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        let (switch, port) = parts(name)?;
        if self.existing(name.as_str()).is_some() {
            return Err(Errno::EBUSY);
        }
        let Some(adapter) = self.persistent.get(port).cloned() else {
            return self.attach_interface(name.as_str(), (switch, port), body, options);
        };
        if adapter.is_bound() {
            return Err(Errno::EBUSY);
        }
        let vale_port = self.vale_port_of(port).ok_or(Errno::EINVAL)?;
        let attached = vale_port.attachment().as_ref().map(|at| at.switch.name == switch);
        match attached {
            Some(true) => Err(Errno::EBUSY),
            // A second switch has the port as a card, which joins the two switches.
            Some(false) => self.attach_card(name.as_str(), switch, &adapter, body, options),
            None => {
                body.port_index = vale_port.attach(&self.switch(switch)?)?;
                Ok(())
            }
        }
    }

    /// Attaches an interface to a switch.
    fn attach_interface(
        &mut self,
        name: &str,
        (switch, interface): (&str, &str),
        body: &mut ValeAttach,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        if self.attached.contains_key(name) {
            return Err(Errno::EBUSY);
        }
        if !is_interface(interface, options) {
            return Err(Errno::EINVAL);
        }
        let card = self.interface(interface, &Register::default(), options)?;
        if card.is_bound() {
            return Err(Errno::EBUSY);
        }
        self.attach_card(name, switch, &card, body, options)
    }

    /// Attaches a card to a switch; with mode NIC_SW, also the host's side of it, by another port.
    fn attach_card(
        &mut self,
        name: &str,
        switch: &str,
        card: &Arc<Adapter>,
        body: &mut ValeAttach,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        let geometry = card.port.geometry;
        // The port's transmit rings take what the card's rings receive.
        let like_card = |tx_rings: u32, rx_rings: u32| Register {
            tx_rings: tx_rings as u16,
            rx_rings: rx_rings as u16,
            tx_slots: geometry.rx_slots,
            rx_slots: geometry.tx_slots,
            mem_id: card.port.region.id,
            ..Register::default()
        };
        let mut ports = vec![self.vale_port(
            name,
            &like_card(geometry.rx_rings, geometry.tx_rings),
            options,
        )?];
        if body.register.mode == modes::NIC_SW && geometry.has_host {
            let wanted = like_card(geometry.host_rx_rings, geometry.host_tx_rings);
            ports.push(self.vale_port(&format!("{name}^"), &wanted, options)?);
        }
        let switch = self.switch(switch)?;
        let mut numbers = Vec::new();
        for port in &ports {
            let port = self.vale_port_of(&port.name).ok_or(Errno::EINVAL)?;
            numbers.push(port.attach(&switch)?);
        }
        let attached = AttachedCard::start(card, &ports, numbers[0])?;
        self.attached.insert(name.into(), attached);
        body.port_index = numbers[0];
        Ok(())
    }

    /// Marks an attached card as polled, or no longer.
    ///
    /// # Errors
    /// EINVAL: no card is attached there, an invalid mode, or it is not polled. EBUSY: it is polled.
    pub(in crate::engine) fn set_polling(
        &mut self,
        name: &PortName,
        body: &Polling,
        polls: bool,
    ) -> Result<(), Errno> {
        let card = self.attached.get_mut(name.as_str()).ok_or(Errno::EINVAL)?;
        let known = [polling_modes::SINGLE_CPU, polling_modes::MULTI_CPU].contains(&body.mode);
        if polls && (!known || body.cpus == 0) {
            return Err(Errno::EINVAL);
        }
        if card.polls == polls {
            return Err(if polls { Errno::EBUSY } else { Errno::EINVAL });
        }
        card.polls = polls;
        Ok(())
    }

    /// Detaches a persistent port or a card from its switch.
    ///
    /// # Errors
    /// ENXIO: the switch has no such port. EBUSY: a file has it.
    pub(in crate::engine) fn vale_detach(
        &mut self,
        name: &PortName,
        body: &mut ValeDetach,
    ) -> Result<(), Errno> {
        let (switch, port) = parts(name)?;
        if let Some(card) = self.attached.remove(name.as_str()) {
            body.port_index = card.port_index;
            return Ok(());
        }
        if self.existing(name.as_str()).is_some_and(|adapter| adapter.is_bound()) {
            return Err(Errno::EBUSY);
        }
        let adapter = self.persistent.get(port).ok_or(Errno::ENXIO)?;
        let vale_port = self.vale_port_of(port).ok_or(Errno::ENXIO)?;
        let here = vale_port.attachment().as_ref().is_some_and(|it| it.switch.name == switch);
        if !here {
            return Err(Errno::ENXIO);
        }
        if adapter.is_bound() {
            return Err(Errno::EBUSY);
        }
        body.port_index = vale_port.detach().map_or(0, |it| it.number);
        Ok(())
    }

    /// Finds a port by its name, or without a name the next one from switch and port indices on.
    ///
    /// # Errors
    /// ENOENT: none.
    pub(in crate::engine) fn vale_list(
        &mut self,
        name: &mut PortName,
        body: &mut ValeList,
    ) -> Result<(), Errno> {
        if !name.is_empty() {
            let PortKind::Vale { switch, port } = name.kind()? else { return Err(Errno::EINVAL) };
            let (index, switch) = self.find_switch(switch).ok_or(Errno::ENOENT)?;
            let mut ports =
                std::iter::successors(switch.port_from(0), |(n, _)| switch.port_from(n + 1));
            let found = ports.find(|(_, it)| it.name == port).ok_or(Errno::ENOENT)?;
            (body.bridge_index, body.port_index) = (index, found.0);
            return Ok(());
        }
        let mut first = body.port_index;
        for index in usize::from(body.bridge_index)..self.switches.len() {
            let found = self.switches[index].as_ref().and_then(|switch| {
                switch.port_from(first).map(|(number, port)| (switch.name.clone(), number, port))
            });
            if let Some((switch, number, port)) = found {
                *name = PortName::from(&*format!("{switch}:{}", port.name));
                (body.bridge_index, body.port_index) = (index as u16, number);
                return Ok(());
            }
            first = 0;
        }
        Err(Errno::ENOENT)
    }

    /// Makes a persistent port.
    ///
    /// # Errors
    /// EEXIST: an interface or port has the name. EINVAL: not a name of an interface, or no such region.
    pub(in crate::engine) fn new_interface(
        &mut self,
        name: &PortName,
        body: &mut ValeNewInterface,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        let PortKind::Interface(name) = name.kind()? else { return Err(Errno::EINVAL) };
        if name.is_empty() || name.len() > 15 {
            return Err(Errno::EINVAL);
        }
        if self.existing(name).is_some() || is_interface(name, options) {
            return Err(Errno::EEXIST);
        }
        let wanted = Register {
            tx_slots: body.tx_slots,
            rx_slots: body.rx_slots,
            tx_rings: body.tx_rings,
            rx_rings: body.rx_rings,
            mem_id: body.mem_id,
            ..Register::default()
        };
        let adapter = self.vale_port(name, &wanted, options)?;
        let geometry = adapter.port.geometry;
        (body.tx_slots, body.rx_slots) = (geometry.tx_slots, geometry.rx_slots);
        (body.tx_rings, body.rx_rings) = (geometry.tx_rings as u16, geometry.rx_rings as u16);
        body.mem_id = adapter.port.region.id;
        self.persistent.insert(name.into(), adapter);
        Ok(())
    }

    /// Deletes a persistent port.
    ///
    /// # Errors
    /// ENXIO: no such port. EBUSY: it is attached, or a file has it.
    pub(in crate::engine) fn delete_interface(&mut self, name: &PortName) -> Result<(), Errno> {
        let name = name.as_str();
        let adapter = self.persistent.get(name).ok_or(Errno::ENXIO)?;
        let attached = self.vale_port_of(name).is_some_and(|port| port.attachment().is_some());
        // A file or a pipe that has the port.
        if attached || Arc::strong_count(adapter) > 1 {
            return Err(Errno::EBUSY);
        }
        self.persistent.remove(name);
        Ok(())
    }
}
