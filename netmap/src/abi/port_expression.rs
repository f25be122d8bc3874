//! The name of a port as users of netmap programs write it: libnetmap's `netmap:eth0-0/R@conf:host-rings=4`.
//!
//! ```text
//!   netmap:eth0   vale0:1   netmap:eth0{2     the port; { and } are the ends of a pipe
//!     ^           host rings only             -3    ring 3 of the card
//!     ^1          host ring 1                 *     rings of card and host
//!     /xztrRT     exclusive, zero-copy monitor, monitor transmit, monitor receive,
//!                 receive rings only, transmit rings only
//!     @2          the region                  @share=netmap:eth0   the region of another port
//!     @conf:rings=2,slots=512,…               rings, slots, host-rings; each also with tx- or rx-
//! ```

use std::str::FromStr;

use sluicegate_base::error::Error;

use super::PortName;
use super::bodies::{Register, modes, register_flags};
use super::port_name::NAME_BYTES;

/// Ring numbers are below this.
const MAX_RINGS: u16 = 0xFFF;

/// A port's name as users write it, taken apart into the request that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortExpression {
    /// The name to put into the request.
    pub port: PortName,
    /// The request's body.
    pub register: Register,
    /// The port that has the region to use.
    pub share: Option<PortName>,
}

impl FromStr for PortExpression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|reason| Error::Port { port: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<PortExpression, String> {
    let (port, rest) = split_port(text)?;
    let mut expression = PortExpression {
        port,
        register: Register { mode: modes::ALL_NIC, ..Register::default() },
        share: None,
    };
    let mut rest = expression.read_mode(rest)?;
    loop {
        let mem_id =
            rest.strip_prefix('@').filter(|id| id.starts_with(|c: char| c.is_ascii_digit()));
        rest = match (rest.strip_prefix('/'), mem_id) {
            (Some(flags), _) => expression.read_flags(flags)?,
            (None, Some(id)) => expression.read_mem_id(id)?,
            (None, None) => break,
        };
    }
    if rest.is_empty() {
        return Ok(expression);
    }
    let options = rest.strip_prefix('@').ok_or_else(|| format!("'{rest}' is not a modifier"))?;
    options.split('@').try_for_each(|option| expression.read_option(option))?;
    Ok(expression)
}

/// Splits the port's name in front of the modifiers, without `netmap:`.
fn split_port(text: &str) -> Result<(PortName, &str), String> {
    let form = || "a port is netmap:NAME or vale[SWITCH]:NAME".to_owned();
    let (prefix, name) = text.split_once(':').ok_or_else(form)?;
    let start = match prefix.strip_prefix("vale") {
        _ if prefix == "netmap" => text.len() - name.len(),
        Some(switch) if is_identifier(switch) => 0,
        _ => return Err(form()),
    };
    let end = text.find(['-', '*', '^', '/', '@']).unwrap_or(text.len());
    let Some(name) = text.get(start..end).filter(|name| !name.ends_with(':') && !name.is_empty())
    else {
        return Err(form());
    };
    if name.len() >= NAME_BYTES {
        return Err(format!("the name is longer than {} bytes", NAME_BYTES - 1));
    }
    match name.split_once(['{', '}']) {
        Some((_, id)) if id.is_empty() || !is_identifier(id) => {
            Err(format!("'{id}' is not a pipe: letters, digits and _"))
        }
        _ => Ok((name.into(), &text[end..])),
    }
}

fn is_identifier(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Splits the digits in front of a text.
fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn number<T: FromStr>(of: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{of}: '{text}' is not a number in range"))
}

impl PortExpression {
    /// Reads which rings to bind.
    fn read_mode<'a>(&mut self, text: &'a str) -> Result<&'a str, String> {
        let (mode, rest) = match (text.as_bytes().first(), text.get(1..).unwrap_or_default()) {
            (Some(b'*'), rest) => {
                self.register.mode = modes::NIC_SW;
                return Ok(rest);
            }
            (Some(b'^'), rest) if !rest.starts_with(|c: char| c.is_ascii_digit()) => {
                self.register.mode = modes::SW;
                return Ok(rest);
            }
            (Some(b'^'), rest) => (modes::ONE_SW, rest),
            (Some(b'-'), rest) => (modes::ONE_NIC, rest),
            _ => return Ok(text),
        };
        let (digits, rest) = split_digits(rest);
        let ring = number("ring", digits)?;
        if ring >= MAX_RINGS {
            return Err(format!("ring {ring}: the last possible one is {}", MAX_RINGS - 1));
        }
        self.register.mode = mode;
        self.register.ringid = ring;
        Ok(rest)
    }

    /// Reads the letters of flags, up to `@`.
    fn read_flags<'a>(&mut self, text: &'a str) -> Result<&'a str, String> {
        let (letters, rest) = text.split_at(text.find('@').unwrap_or(text.len()));
        if letters.is_empty() {
            return Err("no flag follows '/'".into());
        }
        for letter in letters.chars() {
            self.register.flags |= match letter {
                'x' => register_flags::EXCLUSIVE,
                'z' => register_flags::ZCOPY_MON,
                't' => register_flags::MONITOR_TX,
                'r' => register_flags::MONITOR_RX,
                'R' => register_flags::RX_RINGS_ONLY,
                'T' => register_flags::TX_RINGS_ONLY,
                _ => return Err(format!("'{letter}' is not a flag: x, z, t, r, R, T")),
            };
        }
        Ok(rest)
    }

    /// Reads a region's number; a second one must be the same.
    fn read_mem_id<'a>(&mut self, text: &'a str) -> Result<&'a str, String> {
        let (digits, rest) = split_digits(text);
        let id = number("region", digits)?;
        if id == 0 || ![0, id].contains(&self.register.mem_id) {
            return Err(format!("region {id}: a name has one region, from 1 on"));
        }
        self.register.mem_id = id;
        Ok(rest)
    }

    /// Reads one option, without its `@`.
    fn read_option(&mut self, option: &str) -> Result<(), String> {
        if let Some(values) = option.strip_prefix("conf:") {
            let mut settings: Vec<_> = values.split(',').collect();
            // A setting of one direction overrides that of both, in any order.
            settings.sort_by_key(|setting| setting.contains("tx") || setting.contains("rx"));
            return settings.into_iter().try_for_each(|setting| self.read_setting(setting));
        }
        if let Some(port) =
            ["share=", "share:port="].iter().find_map(|key| option.strip_prefix(key))
        {
            let (port, _) = split_port(port)?;
            self.share = Some(port);
            return Ok(());
        }
        Err(match option.split([':', '=']).next() {
            Some(name @ ("extmem" | "offset")) => format!("@{name} is not supported"),
            _ => format!("'@{option}' is not an option: @NUMBER, @conf:…, @share=PORT"),
        })
    }

    /// Reads `key=value` of `@conf:`.
    fn read_setting(&mut self, setting: &str) -> Result<(), String> {
        let register = &mut self.register;
        let (key, value) =
            setting.split_once('=').ok_or_else(|| format!("@conf: '{setting}' has no value"))?;
        let key = key.replace('_', "-");
        if let "slots" | "tx-slots" | "rx-slots" = &*key {
            let slots = number(&key, value)?;
            if key != "rx-slots" {
                register.tx_slots = slots;
            }
            if key != "tx-slots" {
                register.rx_slots = slots;
            }
            return Ok(());
        }
        let rings = number(&key, value)?;
        match &*key {
            "rings" => (register.tx_rings, register.rx_rings) = (rings, rings),
            "tx-rings" => register.tx_rings = rings,
            "rx-rings" => register.rx_rings = rings,
            "host-rings" => (register.host_tx_rings, register.host_rx_rings) = (rings, rings),
            "host-tx-rings" => register.host_tx_rings = rings,
            "host-rx-rings" => register.host_rx_rings = rings,
            _ => {
                return Err(format!(
                    "@conf: '{key}' is not rings, host-rings or slots, nor one of these with tx- or rx-"
                ));
            }
        }
        Ok(())
    }
}
