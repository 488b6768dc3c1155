//! The subject alternative names of a certificate.
//!
//! The certificate has been verified before this is asked; here its DER is only walked to one
//! extension. Anything unexpected means that there are no names.

use std::net::{Ipv4Addr, Ipv6Addr};

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;

/// E-mail addresses, DNS names, URIs and IP addresses, in the order of the certificate.
pub(super) fn names(certificate: &[u8]) -> Option<Vec<String>> {
    let (_, certificate, _) = element(certificate)?;
    let (_, to_be_signed, _) = element(certificate)?;
    let extensions = content(find(to_be_signed, |tag, _| tag == EXTENSIONS)?, SEQUENCE)?;
    let extension = find(extensions, |_, extension| {
        element(extension).is_some_and(|(tag, id, _)| tag == OBJECT_ID && id == SUBJECT_ALT_NAME)
    })?;
    let mut rest = content(find(extension, |tag, _| tag == OCTET_STRING)?, SEQUENCE)?;
    let mut names = Vec::new();
    while let Some((tag, name, after)) = element(rest) {
        names.extend(text(tag, name));
        rest = after;
    }
    Some(names)
}

fn text(tag: u8, name: &[u8]) -> Option<String> {
    match tag {
        EMAIL | DNS | URI => {
            let text = std::str::from_utf8(name).ok()?;
            (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())).then(|| text.to_owned())
        }
        IP => match name.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(name).ok()?).to_string()),
            16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(name).ok()?).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The content of the first element for which `is` holds.
fn find(mut elements: &[u8], is: impl Fn(u8, &[u8]) -> bool) -> Option<&[u8]> {
    loop {
        let (tag, content, rest) = element(elements)?;
        if is(tag, content) {
            return Some(content);
        }
        elements = rest;
    }
}

fn content(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    element(bytes).filter(|(found, ..)| *found == tag).map(|(_, content, _)| content)
}

/// Tag, content, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if *first & 0x80 != 0 {
        let digits = usize::from(first & 0x7f);
        if digits == 0 || digits > 4 || rest.len() < digits {
            return None;
        }
        let (number, after) = rest.split_at(digits);
        length = number.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    (rest.len() >= length).then(|| (*tag, &rest[..length], &rest[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate(names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_keep_their_order_whatever_their_kind() {
        // G-5
        let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let uri = SanType::URI("spiffe://shop/billing".try_into().unwrap());
        let mail = SanType::Rfc822Name("ops@example.com".try_into().unwrap());
        let address = SanType::IpAddress("10.1.2.3".parse().unwrap());
        let of = |listed: Vec<SanType>| names(&certificate(listed)).unwrap_or_default();
        assert_eq!(of(vec![dns("a.example"), uri.clone()]), ["a.example", "spiffe://shop/billing"]);
        assert_eq!(of(vec![uri, dns("a.example")]), ["spiffe://shop/billing", "a.example"]);
        assert_eq!(of(vec![mail, address]), ["ops@example.com", "10.1.2.3"]);
        assert_eq!(of(vec![]), Vec::<String>::new());
    }

    #[test]
    fn broken_certificates_have_no_name() {
        let whole = certificate(vec![SanType::DnsName("a.example".try_into().unwrap())]);
        for cut in 0..whole.len() {
            assert_eq!(names(&whole[..cut]), None, "cut at {cut}");
        }
        for garbage in [&[][..], &[0x30], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0xff; 40]] {
            assert_eq!(names(garbage), None);
        }
    }
}
