//! One address has many spellings. None of them gets past the networks of a target.

use std::sync::Arc;

use duewheel_delivery::{NetworkSettings, PushClass, PushClient, PushTarget, TargetSettings};

use crate::receiver::{Names, request};

/// What a spelling comes to for a target with `networks: public`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelled {
    /// An address that is not public.
    Refused,
    /// A public address.
    Public,
    /// A name, to be looked up as this.
    Name(&'static str),
    /// No URL of a target at all.
    Bad,
}

use Spelled::{Bad, Name, Public, Refused};

const SPELLINGS: &[(&str, Spelled)] = &[
    // Loopback.
    ("http://127.0.0.1/", Refused),
    ("http://127.0.0.1./", Refused),
    ("http://127.1/", Refused),
    ("http://127.0.1/", Refused),
    ("http://2130706433/", Refused),
    ("http://2130706433./", Refused),
    ("http://017700000001/", Refused),
    ("http://0x7f000001/", Refused),
    ("http://0X7F000001/", Refused),
    ("http://0x7f.0.0.1/", Refused),
    ("http://0x7f.0x0.0x0.0x1/", Refused),
    ("http://0177.0.0.1/", Refused),
    ("http://0177.0.0.01/", Refused),
    ("http://00000177.0.0.1/", Refused),
    ("http://127.0.0.0x1/", Refused),
    ("http://0x7f.1/", Refused),
    ("http://127.0x1/", Refused),
    ("http://0177.1/", Refused),
    ("http://127.255.255.254/", Refused),
    ("http://%31%32%37%2e%30%2e%30%2e%31/", Refused),
    ("http://127%2E0.0.1/", Refused),
    ("http://１２７.０.０.１/", Refused),
    ("http://①②⑦.⓪.⓪.①/", Refused),
    ("http://127。0。0。1/", Refused),
    ("http://127．0．0．1/", Refused),
    ("http://127｡0｡0｡1/", Refused),
    ("HTTP://127.0.0.1/", Refused),
    ("https://127.0.0.1:8443/", Refused),
    ("http:///me:pw@example.com/", Bad),
    ("http:////me@example.com/", Bad),
    ("http:///:pw@example.com/", Bad),
    ("http:/me:pw@example.com//x", Bad),
    ("http:///127.0.0.1/", Refused),
    ("http:////127.0.0.1/", Refused),
    ("http://[::1]/", Refused),
    ("http://[0:0:0:0:0:0:0:1]/", Refused),
    ("http://[0000:0000:0000:0000:0000:0000:0000:0001]/", Refused),
    ("http://[::0.0.0.1]/", Refused),
    ("http://[::01]/", Refused),
    ("http://[::ffff:127.0.0.1]/", Refused),
    ("http://[::ffff:7f00:1]/", Refused),
    ("http://[::FFFF:7F00:0001]/", Refused),
    ("http://[0:0:0:0:0:ffff:127.0.0.1]/", Refused),
    ("http://[::127.0.0.1]/", Refused),
    ("http://[::7f00:1]/", Refused),
    ("http://[::ffff:0:127.0.0.1]/", Refused),
    ("http://[64:ff9b::127.0.0.1]/", Refused),
    ("http://[64:ff9b::7f00:1]/", Refused),
    ("http://[64:ff9b:1::127.0.0.1]/", Refused),
    ("http://[2002:7f00:1::]/", Refused),
    ("http://[2002:7f00:0001::1]/", Refused),
    ("http://[2001:0:808:808::80ff:fffe]/", Refused),
    ("http://[2600::5efe:127.0.0.1]/", Refused),
    // This host, and nobody.
    ("http://0/", Refused),
    ("http://0.0.0.0/", Refused),
    ("http://0x0/", Refused),
    ("http://00/", Refused),
    ("http://0.1/", Refused),
    ("http://[::]/", Refused),
    ("http://[::ffff:0.0.0.0]/", Refused),
    ("http://[::ffff:0:0]/", Refused),
    // Private.
    ("http://10.0.0.1/", Refused),
    ("http://10.1/", Refused),
    ("http://0xa000001/", Refused),
    ("http://012.0.0.1/", Refused),
    ("http://167772161/", Refused),
    ("http://172.16.0.1/", Refused),
    ("http://172.31.255.255/", Refused),
    ("http://0254.020.0.1/", Refused),
    ("http://2886729729/", Refused),
    ("http://192.168.0.1/", Refused),
    ("http://192.168.1/", Refused),
    ("http://0xc0.0xa8.0.1/", Refused),
    ("http://0xc0a80001/", Refused),
    ("http://3232235521/", Refused),
    ("http://030052000001/", Refused),
    ("http://[::ffff:10.0.0.1]/", Refused),
    ("http://[::ffff:c0a8:1]/", Refused),
    ("http://[64:ff9b::a00:1]/", Refused),
    ("http://[2002:a00:1::1]/", Refused),
    ("http://[2002:c0a8:101::]/", Refused),
    ("http://[fc00::1]/", Refused),
    ("http://[fd12:3456:789a::1]/", Refused),
    ("http://[fec0::1]/", Refused),
    ("http://100.64.0.1/", Refused),
    ("http://100.127.255.254/", Refused),
    // One link, and metadata.
    ("http://169.254.169.254/latest/meta-data/", Refused),
    ("http://169.254.169.254./", Refused),
    ("http://2852039166/", Refused),
    ("http://0xa9fea9fe/", Refused),
    ("http://0xA9.0xFE.0xA9.0xFE/", Refused),
    ("http://0251.0376.0251.0376/", Refused),
    ("http://0251.254.169.254/", Refused),
    ("http://025177524776/", Refused),
    ("http://169.254.43518/", Refused),
    ("http://169.16689662/", Refused),
    ("http://169.254.0xa9fe/", Refused),
    ("http://169%2e254%2e169%2e254/", Refused),
    ("http://１６９.２５４.１６９.２５４/", Refused),
    ("http://169。254。169。254/", Refused),
    ("http://[::ffff:169.254.169.254]/", Refused),
    ("http://[::ffff:a9fe:a9fe]/", Refused),
    ("http://[0:0:0:0:0:FFFF:A9FE:A9FE]/", Refused),
    ("http://[::a9fe:a9fe]/", Refused),
    ("http://[64:ff9b::169.254.169.254]/", Refused),
    ("http://[64:ff9b::a9fe:a9fe]/", Refused),
    ("http://[2002:a9fe:a9fe::]/", Refused),
    ("http://[2001:0:808:808::5601:5601]/", Refused),
    ("http://[fe80::1]/", Refused),
    ("http://[fe80::5efe:169.254.169.254]/", Refused),
    ("http://[febf::1]/", Refused),
    ("http://[fd00:ec2::254]/", Refused),
    ("http://[fd20:ce::254]/", Refused),
    ("http://169.254.170.2/", Refused),
    ("http://100.100.100.200/", Refused),
    ("http://168.63.129.16/", Refused),
    ("http://192.0.0.192/", Refused),
    // Other special networks.
    ("http://192.0.2.1/", Refused),
    ("http://192.88.99.1/", Refused),
    ("http://198.18.0.1/", Refused),
    ("http://198.51.100.1/", Refused),
    ("http://203.0.113.1/", Refused),
    ("http://224.0.0.1/", Refused),
    ("http://240.0.0.1/", Refused),
    ("http://255.255.255.255/", Refused),
    ("http://0xffffffff/", Refused),
    ("http://4294967295/", Refused),
    ("http://[100::1]/", Refused),
    ("http://[2001:db8::1]/", Refused),
    ("http://[2001:2::1]/", Refused),
    ("http://[3fff::1]/", Refused),
    ("http://[5f00::1]/", Refused),
    ("http://[ff02::1]/", Refused),
    ("http://[ff0e::1]/", Refused),
    // Names of this machine.
    ("http://localhost/", Refused),
    ("http://LOCALHOST./", Refused),
    ("http://loc%61lhost/", Refused),
    ("http://ⓛocalhost/", Refused),
    ("http://hook.localhost:8080/", Refused),
    // Public ones, in as many spellings.
    ("http://8.8.8.8/", Public),
    ("http://8.8.8.8./", Public),
    ("http://8.8.2056/", Public),
    ("http://134744072/", Public),
    ("http://0x08080808/", Public),
    ("http://[::ffff:8.8.8.8]/", Public),
    ("http://[64:ff9b::8.8.8.8]/", Public),
    ("http://[2606:4700:4700::1111]/", Public),
    // Names, which are looked up and then judged.
    ("http://localhost.localdomain/", Name("localhost.localdomain")),
    ("http://127.0.0.1.nip.io/", Name("127.0.0.1.nip.io")),
    ("http://metadata.google.internal/", Name("metadata.google.internal")),
    ("http://bücher.example/", Name("xn--bcher-kva.example")),
    ("http://BÜCHER。example/", Name("xn--bcher-kva.example")),
    ("http://example.com./", Name("example.com.")),
    ("http://169.254.169.254.example/", Name("169.254.169.254.example")),
    ("http://0x7f000001.example/", Name("0x7f000001.example")),
    ("http://1.1.1.1.1a/", Name("1.1.1.1.1a")),
    // No target's URL.
    ("http://example.com@127.0.0.1/", Bad),
    ("http://127.0.0.1@example.com/", Bad),
    ("http://user:password@example.com/", Bad),
    ("http://@example.com/", Bad),
    ("http://:@example.com/", Bad),
    ("http://example.com#@127.0.0.1/", Bad),
    ("http://example.com\\@127.0.0.1/", Bad),
    ("http://127.0.0.1\\.example.com/", Bad),
    ("http://127.0.0.1\t/", Bad),
    ("http://127.0.0.1\n.example.com/", Bad),
    ("http://127.0.0.1 /", Bad),
    (" http://127.0.0.1/", Bad),
    ("http://127.0.0.1\u{3000}/", Bad),
    ("http://256.256.256.256/", Bad),
    ("http://127.0.0.256/", Bad),
    ("http://127.0.0.1.1/", Bad),
    ("http://1.2.3.4.5/", Bad),
    ("http://4294967296/", Bad),
    ("http://0x100000000/", Bad),
    ("http://127.0.0.09/", Bad),
    ("http://example.0x1/", Bad),
    ("http://example.1/", Bad),
    ("http://127..0.1/", Bad),
    ("http://.127.0.0.1/", Bad),
    ("http://[::1/", Bad),
    ("http://::1/", Bad),
    ("http://[::1]a/", Bad),
    ("http://[fe80::1%eth0]/", Bad),
    ("http://[fe80::1%25eth0]/", Bad),
    ("http://[v1.fe80::1]/", Bad),
    ("http://[127.0.0.1]/", Bad),
    ("http://[::127.0.0.1.]/", Bad),
    ("http://[:::1]/", Bad),
    ("http://exa%00mple.com/", Bad),
    ("http://exa%20mple.com/", Bad),
    ("http://example.com%2f@127.0.0.1/", Bad),
    ("http://example..com/", Bad),
    ("http:///", Bad),
    ("http:127.0.0.1", Bad),
    ("http:/127.0.0.1/", Bad),
    ("//127.0.0.1/", Bad),
    ("127.0.0.1", Bad),
    ("file:///etc/passwd", Bad),
    ("gopher://127.0.0.1:6379/_INFO", Bad),
    ("ftp://127.0.0.1/", Bad),
    ("ws://127.0.0.1/", Bad),
    ("javascript:alert(1)", Bad),
    ("unix:/var/run/docker.sock", Bad),
    ("", Bad),
];

#[test]
fn there_are_enough_and_none_twice() {
    let mut all: Vec<&str> = SPELLINGS.iter().map(|(url, _)| *url).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), SPELLINGS.len());
    assert!(all.len() >= 120, "{}", all.len());
}

#[test]
fn each_spelling_is_what_it_is() {
    for (url, spelled) in SPELLINGS {
        let result = PushTarget::new(&TargetSettings::new(*url)).map_err(|e| e.to_string());
        let refused = "url: leads to an address that networks does not permit";
        match (spelled, result) {
            (Public | Name(_), Ok(_)) => {}
            (Refused, Err(error)) if error == refused => {}
            (Bad, Err(error)) if error.starts_with("url: ") && error != refused => {}
            (_, result) => panic!("{url:?} should be {spelled:?}, and is {result:?}"),
        }
    }
}

#[test]
fn networks_permit_localhost() {
    for (networks, permits) in [("127.0.0.0/8", true), ("::1", true), ("any", true), ("10.0.0.0/8", false)] {
        let networks = Some(NetworkSettings::One(networks.into()));
        let settings = TargetSettings { networks, ..TargetSettings::new("http://localhost:8080/hook") };
        assert_eq!(PushTarget::new(&settings).is_ok(), permits, "{settings:?}");
    }
}

#[tokio::test]
async fn name_resolves_once_and_is_checked() {
    for (url, spelled) in SPELLINGS {
        let Name(name) = spelled else { continue };
        for address in ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fe80::1"] {
            let names = Names::with(name, &[&["8.8.8.8", address]]);
            let target = Arc::new(PushTarget::new(&TargetSettings::new(*url)).unwrap());
            let outcome = PushClient::with_resolver(target, names.clone()).deliver(&request()).await;
            assert_eq!(outcome.class, PushClass::AddressRefused, "{url} at {address}");
            assert_eq!(names.asked(), [*name]);
        }
    }
}
