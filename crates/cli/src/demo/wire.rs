//! Lines between the demo and the service it crashes: words separated by spaces.
//!
//! The demo is the clients and the bank; the service is in the middle and dies now and then.

/// From the demo to the service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToService {
    /// A client asks for a payment.
    Pay { id: u64, key: String },
    /// The bank answers call `call`: done, or refused because the token is fenced off.
    Bank { call: u64, done: bool },
}

/// From the service to the demo.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromService {
    /// The answer to a client.
    Answer { id: u64, paid: bool },
    /// A charge; `key` is the client's, `token` the attempt's.
    Charge { call: u64, key: String, token: u64 },
    /// Did this charge happen? If not, refuse tokens up to `token` from now on.
    Ask { call: u64, key: String, token: u64 },
}

impl ToService {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Pay { id, key } => format!("pay {id} {key}\n"),
            Self::Bank { call, done } => format!("bank {call} {}\n", u8::from(*done)),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["pay", id, key] => Some(Self::Pay { id: id.parse().ok()?, key: key.into() }),
            ["bank", call, done] => Some(Self::Bank { call: call.parse().ok()?, done: done == "1" }),
            _ => None,
        }
    }
}

impl FromService {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Answer { id, paid } => format!("answer {id} {}\n", u8::from(*paid)),
            Self::Charge { call, key, token } => format!("charge {call} {key} {token}\n"),
            Self::Ask { call, key, token } => format!("ask {call} {key} {token}\n"),
        }
    }

    /// A line cut short by a crash is no line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["answer", id, paid] => Some(Self::Answer { id: id.parse().ok()?, paid: paid == "1" }),
            ["charge", call, key, token] => {
                Some(Self::Charge { call: call.parse().ok()?, key: key.into(), token: token.parse().ok()? })
            }
            ["ask", call, key, token] => {
                Some(Self::Ask { call: call.parse().ok()?, key: key.into(), token: token.parse().ok()? })
            }
            _ => None,
        }
    }
}
