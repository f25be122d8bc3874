//! The tables of an engine: regions, ports, persistent VALE ports and switches. They change under one lock.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use serde_json::{Value, json};

use super::EngineOptions;
use super::adapter::{Adapter, PortRings};
use super::card::Card;
use super::monitor;
use super::pipe::{Pipe, PipeEnd};
use super::region::{BUFFER_BYTES, RegionSize, RegionState};
use super::register::MONITOR;
use super::vale::{self, AttachedCard, Switch, ValeDriver, ValePort};
use crate::abi::bodies::{PoolsInfo, PortInfo, Register};
use crate::abi::{PipeRole, PortKind, PortName};

/// The number of the region that all cards share.
const CARDS_REGION: u16 = 1;

/// The tables.
#[derive(Debug, Default)]
pub(super) struct Control {
    regions: HashMap<u16, Weak<RegionState>>,
    /// The ports that files have, or that persist, by name.
    adapters: HashMap<String, Weak<Adapter>>,
    /// The pipes with an end that exists, by parent and id.
    pipes: HashMap<(String, String), Weak<Pipe>>,
    /// The VALE ports that exist, by name: "vale0:1", or "v0" for a persistent one.
    pub(super) vale_ports: HashMap<String, Weak<ValePort>>,
    /// Persistent VALE ports.
    pub(super) persistent: HashMap<String, Arc<Adapter>>,
    /// Cards that are attached to a switch, by the name of the port there.
    pub(super) attached: HashMap<String, AttachedCard>,
    /// Switches by index.
    pub(super) switches: [Option<Arc<Switch>>; vale::MAX_SWITCHES],
}

impl Control {
    /// Returns a region by its number; the one of the cards exists always.
    ///
    /// # Errors
    /// EINVAL: no such region.
    pub(super) fn region(&mut self, id: u16) -> Result<Arc<RegionState>, Errno> {
        if let Some(region) = self.regions.get(&id).and_then(Weak::upgrade) {
            return Ok(region);
        }
        if id != CARDS_REGION {
            return Err(Errno::EINVAL);
        }
        let region = Arc::new(RegionState::new(id, RegionSize::CARDS, false)?);
        self.regions.insert(id, Arc::downgrade(&region));
        Ok(region)
    }

    /// Returns the region that a program asked for, or a new one.
    ///
    /// # Errors
    /// EINVAL: no such region. ENOMEM.
    fn private_region(&mut self, id: u16) -> Result<Arc<RegionState>, Errno> {
        if id != 0 {
            return self.region(id);
        }
        self.regions.retain(|_, region| region.strong_count() > 0);
        let id = (CARDS_REGION + 1..u16::MAX).find(|id| !self.regions.contains_key(id));
        let id = id.ok_or(Errno::ENOMEM)?;
        let region = Arc::new(RegionState::new(id, RegionSize::PRIVATE, true)?);
        self.regions.insert(id, Arc::downgrade(&region));
        Ok(region)
    }

    /// Describes regions and ports.
    pub(super) fn list(&self) -> Value {
        let regions = self.regions.values().filter_map(Weak::upgrade);
        let region = |it: Arc<RegionState>| {
            let (bytes, free) = (it.memory.bytes(), it.free_buffers());
            json!({"id": it.id, "bytes": bytes, "buffers": it.buffers(), "free_buffers": free})
        };
        let mut regions: Vec<_> = regions.map(region).collect();
        regions.sort_by_key(|it| it["id"].as_u64());
        let adapters = self.adapters.values().filter_map(Weak::upgrade);
        let mut ports: Vec<_> = adapters.map(|it| it.describe()).collect();
        ports.sort_by_key(|it| it["name"].as_str().map(str::to_owned));
        json!({"regions": regions, "ports": ports})
    }

    /// Returns a port that exists.
    pub(super) fn existing(&self, name: &str) -> Option<Arc<Adapter>> {
        self.adapters.get(name).and_then(Weak::upgrade)
    }

    /// Records a port that now exists.
    fn insert(&mut self, name: &str, adapter: Adapter) -> Arc<Adapter> {
        let adapter = Arc::new(adapter);
        self.adapters.retain(|_, it| it.strong_count() > 0);
        self.adapters.insert(name.into(), Arc::downgrade(&adapter));
        adapter
    }

    /// Returns a port, and makes it if it does not exist.
    ///
    /// # Errors
    /// EINVAL: an invalid name or region, or a monitor of a port that nobody has. ENXIO: no such interface.
    pub(super) fn adapter(
        &mut self,
        name: &PortName,
        wanted: &Register,
        options: &EngineOptions,
    ) -> Result<Arc<Adapter>, Errno> {
        if wanted.flags & MONITOR != 0 {
            let parent = self.existing(&self.canonical(name)?).ok_or(Errno::EINVAL)?;
            return monitor::adapter(&parent, wanted);
        }
        match name.kind()? {
            PortKind::Interface(name) => self.interface(name, wanted, options),
            PortKind::Vale { switch, port } => {
                self.vale(name.as_str(), (switch, port), wanted, options)
            }
            PortKind::Pipe { parent, role, id } => self.pipe((&parent, role, id), wanted, options),
        }
    }

    /// Returns the name under which a port is recorded.
    pub(super) fn canonical(&self, name: &PortName) -> Result<String, Errno> {
        Ok(match name.kind()? {
            PortKind::Vale { port, .. } if self.persistent.contains_key(port) => port.into(),
            _ => name.as_str().into(),
        })
    }

    pub(super) fn interface(
        &mut self,
        name: &str,
        wanted: &Register,
        options: &EngineOptions,
    ) -> Result<Arc<Adapter>, Errno> {
        if let Some(adapter) = self.existing(name) {
            return Ok(adapter);
        }
        let interface = Card::find(name, options)?;
        let host_rings = [wanted.host_tx_rings, wanted.host_rx_rings];
        let (backend, wanted_rings) = Card::plan(&interface, options, host_rings);
        let region = self.region(if wanted.mem_id == 0 { CARDS_REGION } else { wanted.mem_id })?;
        let free = region.free_buffers();
        let geometry = wanted_rings.reduced_to(free);
        if geometry != wanted_rings {
            let (rings, needed) = (wanted_rings.all_rings(), wanted_rings.buffers());
            options.say(format_args!(
                "{name}: region full: {rings} rings of {} slots need {needed} buffers, {free} are free: it gets {} \
                 transmit and {} receive rings",
                geometry.tx_slots, geometry.tx_rings, geometry.rx_rings
            ));
        }
        let card = Card::new(interface, backend, &geometry, options);
        let adapter = Adapter::new(name, PortRings { region, geometry }, Some(Box::new(card)));
        Ok(self.insert(name, adapter))
    }

    fn pipe(
        &mut self,
        (parent, role, id): (&PortName, PipeRole, &str),
        wanted: &Register,
        options: &EngineOptions,
    ) -> Result<Arc<Adapter>, Errno> {
        let bracket = if role == PipeRole::Master { '{' } else { '}' };
        let name = format!("{parent}{bracket}{id}");
        if let Some(adapter) = self.existing(&name) {
            return Ok(adapter);
        }
        let of_parent = Register { mem_id: wanted.mem_id, ..Register::default() };
        let parent = match self.adapter(parent, &of_parent, options) {
            // A pipe needs no interface: its parent then exists as long as it does.
            Err(Errno::ENXIO) => self.vale_port(parent.as_str(), &of_parent, options)?,
            found => found?,
        };
        let key = (parent.name.clone(), id.to_owned());
        let pipe = self.pipes.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let pipe = Pipe::new(&parent, role, wanted);
            self.pipes.retain(|_, it| it.strong_count() > 0);
            self.pipes.insert(key, Arc::downgrade(&pipe));
            pipe
        });
        let (region, geometry) = (Arc::clone(&parent.port.region), pipe.geometry(role));
        let end = PipeEnd { pipe, role };
        let adapter = Adapter::new(&name, PortRings { region, geometry }, Some(Box::new(end)));
        Ok(self.insert(&name, adapter))
    }

    /// Makes a VALE port that is attached to no switch.
    ///
    /// # Errors
    /// EINVAL: no such region. ENOMEM.
    pub(super) fn vale_port(
        &mut self,
        name: &str,
        wanted: &Register,
        options: &EngineOptions,
    ) -> Result<Arc<Adapter>, Errno> {
        let slots = [wanted.tx_slots, wanted.rx_slots];
        let geometry = vale::geometry(slots, [wanted.tx_rings, wanted.rx_rings]);
        let region = self.private_region(wanted.mem_id)?;
        let short = name.split_once(':').map_or(name, |(_, port)| port);
        let port = ValePort::new(short, geometry.rx_rings);
        self.vale_ports.retain(|_, it| it.strong_count() > 0);
        self.vale_ports.insert(name.into(), Arc::downgrade(&port));
        let driver = Box::new(ValeDriver { port, options: options.clone() });
        Ok(self.insert(name, Adapter::new(name, PortRings { region, geometry }, Some(driver))))
    }

    /// Answers PORT_INFO_GET: about a port, or without a name about a region.
    ///
    /// # Errors
    /// As [`adapter`](Self::adapter).
    pub(super) fn port_info(
        &mut self,
        name: &PortName,
        body: &mut PortInfo,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        let region = if name.is_empty() {
            self.region(if body.mem_id == 0 { CARDS_REGION } else { body.mem_id })?
        } else {
            let wanted = Register {
                mem_id: body.mem_id,
                tx_slots: body.tx_slots,
                rx_slots: body.rx_slots,
                tx_rings: body.tx_rings,
                rx_rings: body.rx_rings,
                host_tx_rings: body.host_tx_rings,
                host_rx_rings: body.host_rx_rings,
                ..Register::default()
            };
            let adapter = self.adapter(name, &wanted, options)?;
            let geometry = adapter.port.geometry;
            (body.tx_slots, body.rx_slots) = (geometry.tx_slots, geometry.rx_slots);
            body.tx_rings = geometry.tx_rings as u16;
            body.rx_rings = geometry.rx_rings as u16;
            body.host_tx_rings = geometry.host_tx_rings as u16;
            body.host_rx_rings = geometry.host_rx_rings as u16;
            Arc::clone(&adapter.port.region)
        };
        body.memsize = region.memory.bytes() as u64;
        body.mem_id = region.id;
        Ok(())
    }

    /// Answers POOLS_INFO_GET.
    ///
    /// # Errors
    /// EINVAL without a name; as [`adapter`](Self::adapter).
    pub(super) fn pools_info(
        &mut self,
        name: &PortName,
        body: &mut PoolsInfo,
        options: &EngineOptions,
    ) -> Result<(), Errno> {
        if name.is_empty() {
            return Err(Errno::EINVAL);
        }
        let adapter = self.adapter(name, &Register::default(), options)?;
        let region = &adapter.port.region;
        let (rings_at, buffers_at) = region.areas();
        const INTERFACE_BYTES: u32 = 1024;
        const RING_BYTES: u32 = 36_864;
        body.memsize = region.memory.bytes() as u64;
        body.mem_id = region.id;
        body.if_pool_offset = 0;
        body.if_pool_objtotal = rings_at as u32 / INTERFACE_BYTES;
        body.if_pool_objsize = INTERFACE_BYTES;
        body.ring_pool_offset = rings_at as u64;
        body.ring_pool_objtotal = (buffers_at - rings_at) as u32 / RING_BYTES;
        body.ring_pool_objsize = RING_BYTES;
        body.buf_pool_offset = buffers_at as u64;
        body.buf_pool_objtotal = region.buffers();
        body.buf_pool_objsize = BUFFER_BYTES;
        Ok(())
    }
}
