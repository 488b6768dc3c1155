//! How old a key is, where a route can tell.
//!
//! A record is forgotten some day, and a retry after that would run again without a sound. Where keys
//! carry their time, a key older than the route remembers is refused instead.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::HeaderName;
use semel_core::{Key, Timestamp, clock, mutant};

/// How the age of a key is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExpiredKeys {
    /// Not at all.
    #[default]
    NotChecked,
    /// Keys are UUIDs of version 7.
    Uuid7,
    /// The client says in this header when it first sent the key: an HTTP date, or seconds since 1970.
    FirstSent(HeaderName),
}

/// How far a client's clock may be ahead or behind, at most.
const SKEW_MAX: Duration = Duration::from_secs(300);

impl ExpiredKeys {
    /// When the key was made; the error is a sentence for the client.
    pub(crate) fn made_at(&self, key: &Key, headers: &HeaderMap) -> Result<Option<Timestamp>, String> {
        match self {
            Self::NotChecked => Ok(None),
            Self::Uuid7 => uuid7(key.as_str())
                .map(Some)
                .ok_or_else(|| "Keys of this route are UUIDs of version 7.".into()),
            Self::FirstSent(name) => {
                let mut lines = headers.get_all(name).iter();
                let first = lines.next().and_then(|value| value.to_str().ok()).and_then(date);
                match (first, lines.next()) {
                    (Some(at), None) => Ok(Some(at)),
                    _ => Err(format!("This route needs one header {name}: when the key was first sent.")),
                }
            }
        }
    }
}

/// What the age of a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Fit,
    /// Its record may be gone.
    Expired,
    /// From the future, beyond what clocks differ: it would outlive its record.
    Future,
}

pub(crate) fn judge(made_at: Timestamp, now: Timestamp, ttl: Duration) -> Age {
    // A clock that was ahead when the key was made lets it look younger than its record.
    let skew = SKEW_MAX.min(ttl / 10);
    if mutant::on("expired-key-runs") {
        Age::Fit
    } else if made_at.since(now) > skew {
        Age::Future
    } else if now.since(made_at) > ttl.saturating_sub(skew) {
        Age::Expired
    } else {
        Age::Fit
    }
}

fn uuid7(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let well_formed = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            14 => *byte == b'7',
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
            _ => byte.is_ascii_hexdigit(),
        });
    if !well_formed {
        return None;
    }
    let millis = i64::from_str_radix(&format!("{}{}", &text[..8], &text[9..13]), 16).ok()?;
    Some(Timestamp::from_micros(millis.checked_mul(1000)?))
}

fn date(text: &str) -> Option<Timestamp> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Timestamp::from_micros(i64::from(seconds) * 1_000_000));
    }
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(clock::micros(since)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_uuid_of_version_seven_tells_its_time_and_others_are_refused() {
        // G-10
        let at = |key: &str| ExpiredKeys::Uuid7.made_at(&key.parse().unwrap(), &HeaderMap::new());
        // The example of RFC 9562, appendix A.6: 2022-02-22 19:22:22 UTC.
        let known = Timestamp::from_micros(1_645_557_742_000_000);
        assert_eq!(at("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), Ok(Some(known)));
        for other in ["017f22e2-79b0-4cc3-98c4-dc0c0c07398f", "017f22e279b07cc398c4dc0c0c07398f", "order-1"] {
            assert!(at(other).is_err(), "{other}");
        }
    }

    #[test]
    fn the_time_of_the_first_sending_is_read_once_or_refused() {
        // G-10
        let source = ExpiredKeys::FirstSent(HeaderName::from_static("repeatability-first-sent"));
        let key: Key = "k".parse().unwrap();
        let mut headers = HeaderMap::new();
        assert!(source.made_at(&key, &headers).is_err());
        headers.append("repeatability-first-sent", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let known = Timestamp::from_micros(784_111_777_000_000);
        assert_eq!(source.made_at(&key, &headers), Ok(Some(known)));
        headers.append("repeatability-first-sent", "784111777".parse().unwrap());
        assert!(source.made_at(&key, &headers).is_err());
        headers.remove("repeatability-first-sent");
        headers.append("repeatability-first-sent", "784111777".parse().unwrap());
        assert_eq!(source.made_at(&key, &headers), Ok(Some(known)));
    }

    #[test]
    fn a_key_older_than_its_record_may_be_is_expired_and_one_from_the_future_unfit() {
        // G-10
        let made = Timestamp::from_micros(1_700_000_000_000_000);
        assert_eq!(judge(made, made, DAY), Age::Fit);
        assert_eq!(judge(made, made.after(DAY - SKEW_MAX), DAY), Age::Fit);
        assert_eq!(judge(made, made.after(DAY - SKEW_MAX + Duration::from_secs(1)), DAY), Age::Expired);
        assert_eq!(judge(made.after(SKEW_MAX), made, DAY), Age::Fit);
        assert_eq!(judge(made.after(SKEW_MAX + Duration::from_secs(1)), made, DAY), Age::Future);
    }
}
