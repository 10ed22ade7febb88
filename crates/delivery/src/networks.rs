//! The addresses that requests may go to.
//!
//! An address is judged in its plain form: an IPv4 address inside an IPv6 one counts as itself where that is what it
//! means to the network (`::ffff:0:0/96`, and `64:ff9b::/96` of NAT64), and counts *in addition* where a gateway may
//! unpack it (6to4, Teredo, ISATAP, IPv4-compatible addresses, NAT64 for local use).
//!
//! `public` follows the registries of IANA: the IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890), the
//! multicast registries, and for IPv6 the allocation of global unicast addresses (`2000::/3`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::limits::MAX_NETWORKS;

/// The addresses that a target's requests may go to: `public`, `any`, or networks such as `10.0.0.0/8`.
///
/// Addresses of one link (`169.254.0.0/16`, `fe80::/10`) and those where clouds serve credentials to their machines
/// are permitted only if each is named alone, such as `169.254.1.7/32`; neither `any` nor a larger network holds them.
///
/// ```
/// use duewheel_delivery::Networks;
/// let networks = Networks::from_words(&["public", "10.0.0.0/8"])?;
/// assert!(networks.permits("10.1.2.3".parse()?));
/// assert!(networks.permits("::ffff:10.1.2.3".parse()?));
/// assert!(!networks.permits("192.168.1.1".parse()?));
/// assert!(!networks.permits("169.254.169.254".parse()?));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    public: bool,
    any: bool,
    subnets: Vec<Subnet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet {
    address: IpAddr,
    bits: u8,
}

/// Why a text names no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// The text is neither a word nor an address with a prefix.
    #[error("{0:?} is neither public nor any nor a network such as 10.0.0.0/8")]
    Form(String),
    /// The address has bits behind its prefix.
    #[error("{0:?} has bits behind its prefix: the network is {1}/{2}")]
    HostBits(String, IpAddr, u8),
    /// An IPv4 address is written as an IPv6 one.
    #[error("{0:?} is judged as IPv4: write it as such")]
    Mapped(String),
    /// The list has too many networks, or none.
    #[error("there must be 1 to {MAX_NETWORKS} networks")]
    Count,
}

impl Default for Networks {
    fn default() -> Self {
        Networks { public: true, any: false, subnets: Vec::new() }
    }
}

impl Networks {
    /// Reads `public`, `any` and networks; an address that fits one of them is permitted.
    ///
    /// # Errors
    /// See [`BadNetwork`].
    pub fn from_words<T: AsRef<str>>(words: &[T]) -> Result<Self, BadNetwork> {
        if words.is_empty() || words.len() > MAX_NETWORKS {
            return Err(BadNetwork::Count);
        }
        let mut networks = Networks { public: false, any: false, subnets: Vec::new() };
        for word in words {
            match word.as_ref() {
                "public" => networks.public = true,
                "any" => networks.any = true,
                subnet => networks.subnets.push(Subnet::new(subnet)?),
            }
        }
        Ok(networks)
    }

    /// Whether requests may go to this address, in whatever form it comes.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = plain(address);
        let carried = match address {
            IpAddr::V6(v6) => carried(v6),
            IpAddr::V4(_) => Vec::new(),
        };
        self.permits_plain(address) && carried.into_iter().all(|v4| self.permits_plain(v4.into()))
    }

    fn permits_plain(&self, address: IpAddr) -> bool {
        let named = |subnet: &&Subnet| subnet.contains(address);
        if only_by_name(address) {
            return self.subnets.iter().filter(named).any(Subnet::is_single);
        }
        self.any || self.public && is_public(address) || self.subnets.iter().any(|subnet| named(&subnet))
    }
}

impl Subnet {
    fn new(text: &str) -> Result<Self, BadNetwork> {
        let form = || BadNetwork::Form(text.chars().take(64).collect());
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| form())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|bits| *bits <= width).ok_or_else(form)?
            }
            Some(_) => return Err(form()),
        };
        if plain(address) != address {
            return Err(BadNetwork::Mapped(text.to_owned()));
        }
        let start = masked(address, bits);
        if start != address {
            return Err(BadNetwork::HostBits(text.to_owned(), start, bits));
        }
        Ok(Subnet { address, bits })
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && masked(address, self.bits) == self.address
    }

    fn is_single(&self) -> bool {
        self.bits == if self.address.is_ipv4() { 32 } else { 128 }
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from(u32::from(v4) & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(v6) & mask).into()
        }
    }
}

/// The address without the IPv6 form in which the network itself carries IPv4: mapped (RFC 4291) and NAT64 (RFC 6052).
pub(crate) fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => last_four(v6).into(),
            _ => address,
        },
    }
}

/// The IPv4 addresses to which a gateway may pass on what is sent to this address.
fn carried(v6: Ipv6Addr) -> Vec<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let s = v6.segments();
    let mut found = Vec::new();
    match s {
        // IPv4-compatible (RFC 4291), without :: and ::1.
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) > (0, 1) => found.push(of(high, low)),
        // IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0xffff, 0, high, low] => found.push(of(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => found.push(of(high, low)),
        // Teredo (RFC 4380): the server, and the client with its bits inverted.
        [0x2001, 0, ..] => found.extend([of(s[2], s[3]), of(!s[6], !s[7])]),
        // NAT64 for local use (RFC 8215), as a prefix of 96 bits and, if something stands there, of 48 (RFC 6052).
        [0x64, 0xff9b, 1, ..] => {
            found.push(last_four(v6));
            let of_48 = of(s[3], s[4] << 8 | s[5] >> 8);
            if !of_48.is_unspecified() {
                found.push(of_48);
            }
        }
        _ => {}
    }
    // ISATAP (RFC 5214), in any network.
    if matches!(s[4], 0 | 0x200) && s[5] == 0x5efe {
        found.push(last_four(v6));
    }
    found
}

fn last_four(v6: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = v6.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Addresses that a larger network does not hold: those of one link, and those where clouds serve credentials.
fn only_by_name(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_link_local()
                || matches!(
                    v4.octets(),
                    [100, 100, 100, 200]    // Alibaba Cloud
                        | [168, 63, 129, 16] // Azure
                        | [192, 0, 0, 192] // Oracle Cloud
                )
        }
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local()
                || matches!(
                    v6.segments(),
                    [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254 | 0x23] // Amazon: machines, and pods of EKS
                        | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] // Google Cloud
                )
        }
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !matches!(
            v4.octets(),
            [0 | 10 | 127, ..]              // this network; private; loopback
                | [100, 64..=127, ..]       // shared by customers of a carrier
                | [169, 254, ..]            // one link
                | [172, 16..=31, ..]        // private
                | [192, 0, 0 | 2, _]        // protocol assignments; documentation
                | [192, 88, 99, _]          // relays of 6to4, deprecated
                | [192, 168, ..]            // private
                | [198, 18..=19, ..]        // benchmarks
                | [198, 51, 100, _]         // documentation
                | [203, 0, 113, _]          // documentation
                | [224..=255, ..] // multicast, reserved, broadcast
        ),
        IpAddr::V6(v6) => match v6.segments() {
            [0x2001, 0..=0x1ff, ..]         // protocol assignments: Teredo, benchmarks, ORCHID
            | [0x2001, 0xdb8, ..]           // documentation
            | [0x2002, ..]                  // 6to4
            | [0x3fff, 0..=0xfff, ..] => false, // documentation
            // Of the rest only global unicast: no loopback, private, link-local, multicast or SRv6 identifiers.
            [first, ..] => first >> 13 == 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(networks: &[&str], address: &str) -> bool {
        Networks::from_words(networks).unwrap().permits(address.parse().unwrap())
    }

    #[test]
    fn special_network_boundaries_are_refused() {
        let special = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.0.2.255",
            "192.88.99.0",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "198.51.100.255",
            "203.0.113.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "100::",
            "100::ffff:ffff:ffff:ffff",
            "2001::",
            "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db8::",
            "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
            "2002::",
            "2002:808:808::1",
            "3fff::",
            "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
            "4000::",
            "5f00::1",
            "64:ff9b:1::808:808",
            "fc00::",
            "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fe80::",
            "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "fec0::1",
            "ff02::1",
            "::8.8.8.8",
            "::ffff:0:8.8.8.8",
            "2600::5efe:10.0.0.1",
            "2600::200:5efe:127.0.0.1",
        ];
        for address in special {
            assert!(!permits(&["public"], address), "{address}");
        }
    }

    #[test]
    fn neighbours_of_special_networks_are_public() {
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "168.63.129.17",
            "2000::",
            "2001:200::",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2600::1",
            "3ffe:ffff::1",
            "3fff:1000::1",
            "2600::5efe:8.8.8.8",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ];
        for address in public {
            assert!(permits(&["public"], address), "{address}");
        }
    }

    #[test]
    fn link_local_needs_explicit_address() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
        ] {
            for wide in
                [&["any"][..], &["public"], &["any", "0.0.0.0/0", "::/0"], &["169.254.0.0/16", "fe80::/64"]]
            {
                assert!(!permits(wide, address), "{address} by {wide:?}");
            }
            assert!(permits(&[address], address), "{address}");
        }
        assert!(!permits(&["any"], "::ffff:169.254.169.254"));
        assert!(!permits(&["any"], "64:ff9b::169.254.169.254"));
        assert!(!permits(&["any"], "2002:a9fe:a9fe::1"), "6to4 to a metadata address");
        assert!(permits(&["169.254.169.254/32"], "::ffff:a9fe:a9fe"));
        assert!(
            permits(&["any"], "127.0.0.1") && permits(&["any"], "::1") && permits(&["any"], "2002:a00:1::")
        );
    }

    #[test]
    fn embedded_ipv4_address_is_checked() {
        assert!(!permits(&["2002::/16"], "2002:a00:1::1"), "10.0.0.1 is not named");
        assert!(permits(&["2002::/16", "10.0.0.0/8"], "2002:a00:1::1"));
        assert!(!permits(&["2001::/32", "public"], "2001:0:808:808::f5ff:fffe"), "the client is 10.0.0.1");
        assert!(!permits(&["64:ff9b:1::/48"], "64:ff9b:1::10.0.0.1"));
        // The same gateway with a prefix of 48 bits. The last four bytes are public.
        for words in [&["64:ff9b:1::/48", "public"][..], &["any"]] {
            assert!(!permits(words, "64:ff9b:1:a9fe:a9:fe00:808:808"), "{words:?}");
            assert!(permits(words, "64:ff9b:1::808:808"), "{words:?}");
        }
    }

    #[test]
    fn words_that_name_no_network() {
        let bad = |word: &str| Networks::from_words(&[word]).unwrap_err();
        for word in [
            "",
            "private",
            "Any",
            "10/8",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "::/129",
            "10.0.0.0/",
            "a.b",
        ] {
            assert!(matches!(bad(word), BadNetwork::Form(_)), "{word}");
        }
        assert_eq!(
            bad("10.0.0.1/8").to_string(),
            "\"10.0.0.1/8\" has bits behind its prefix: the network is 10.0.0.0/8"
        );
        assert!(matches!(bad("::ffff:10.0.0.0/104"), BadNetwork::Mapped(_)));
        assert_eq!(Networks::from_words::<&str>(&[]), Err(BadNetwork::Count));
    }
}
