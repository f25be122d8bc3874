//! Networks, in a policy and in files.

use std::net::IpAddr;

use ipnet::IpNet;
use sluicegate_base::text_error::Fault;

use super::table::{Value, expect_text, place, quoted};

const RIGHT: &str = "a network is like 198.18.1.0/24, 2001:db8::/32 or 198.18.1.7";

/// Parses a network; an address without length is a host.
///
/// # Errors
/// It is no network, or has bits behind its length.
pub fn network(text: &str) -> Result<IpNet, String> {
    let wrong = || format!("{} is no network: {RIGHT}", quoted(text));
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let Some(length) = length else { return Ok(address.into()) };
    if length.is_empty() || !length.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    let most = if address.is_ipv4() { 32 } else { 128 };
    let net = length.parse().ok().and_then(|length| IpNet::new(address, length).ok());
    let net =
        net.ok_or_else(|| format!("{} is too long: lengths are from 0 to {most}", quoted(text)))?;
    if net.network() != address {
        let network = net.trunc();
        return Err(format!("'{text}' has bits behind its length: write {network} or {address}"));
    }
    Ok(net)
}

/// Reads a network of the policy.
pub(super) fn read(value: &Value, object: &str) -> Result<IpNet, Fault> {
    let text = expect_text(value, object, RIGHT)?;
    network(text).map_err(|problem| Fault::new(&place(value), object, problem))
}
