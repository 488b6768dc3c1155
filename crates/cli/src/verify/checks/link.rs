//! Duplicates that share a connection.

use super::cause;
use super::judge::not_shown;
use super::race::racers_agree;
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Call, How, Scenario, Seen, Step};

const PIPELINED: usize = 3;
const STREAMS: usize = 8;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "pipelined",
            "Connection",
            &["G-8"],
            "Duplicates sent one behind the other on one connection take effect once.",
            |make| shared(make, How::Pipelined(1), PIPELINED),
        ),
        check(
            "http2",
            "Connection",
            &["G-8"],
            "Duplicates on one HTTP/2 connection take effect once.",
            |make| shared(make, How::Http2(1), STREAMS),
        ),
    ]
}

fn shared(make: &mut Make<'_>, how: How, many: usize) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let call = |nth: usize| Call { name: format!("duplicate {nth}"), request: request.clone(), how };
    let scenario =
        Scenario { steps: vec![Step::Send((1..=many).map(call).collect())], counts: vec![exactly(tag, 1)] };
    let insist = make.insist(vec![plain("afterwards", request)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = format!("{many} duplicates on one connection");
        eye.at_most(seen, 0, 1, cause::NOT_ATOMIC, &what)?;
        let failures = seen.answers.iter().filter(|answer| answer.name.starts_with("duplicate "));
        if let Some(why) = failures.filter_map(|answer| answer.reply.as_ref().err()).next() {
            return Err(not_shown(why.clone()));
        }
        let answer = racers_agree(&eye, seen, "duplicate ", &what)?;
        let after = eye.ended_well(seen, "afterwards", cause::RETRY_REFUSED)?;
        if let Some(answer) = answer {
            eye.same(answer, after, "afterwards")?;
        }
        eye.at_least(seen, 0, 1, &what)?;
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}
