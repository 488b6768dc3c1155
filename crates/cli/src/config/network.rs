//! Networks as people write them: `10.0.0.0/8`, `::1`.

use std::net::IpAddr;

use super::resolved::Network;

impl Network {
    /// Reads an address with the number of bits that count; without the number all of them do.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a network; write `10.0.0.0/8`, `192.0.2.7` or `2001:db8::/32`");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.trim().parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
            None => most,
        };
        let network = Self { address, bits };
        let lowest = network.lowest();
        if lowest != address {
            return Err(format!(
                "`{text}` has bits set beyond the first {bits}; write `{lowest}/{bits}` for the network or \
                 `{address}` for the one address"
            ));
        }
        Ok(network)
    }

    /// Whether the address lies in it. An IPv4 address that came in its IPv6 form counts as what it is.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && Self { address, bits: self.bits }.lowest() == self.address
    }

    fn lowest(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        Network::parse(network).unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_has_the_addresses_that_share_its_bits() {
        assert!(contains("10.0.0.0/8", "10.255.3.4") && !contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(contains("0.0.0.0/0", "203.0.113.9") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "2001:db8::1") && !contains("::/0", "203.0.113.9"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"), "IPv4 in its IPv6 form");
    }

    #[test]
    fn what_is_not_a_network_is_refused_with_a_proposal() {
        assert!(Network::parse("10.0.0.1/8").unwrap_err().contains("10.0.0.0/8"));
        for wrong in ["10.0.0.0/33", "::/129", "10.0.0/8", "proxy.internal", "", "1.2.3.4/-1", "1.2.3.4/"] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }
}
