//! What happened in a scenario as a picture: a lane per call, from sent to ended.
//!
//! Long times in which nothing was on its way are drawn short and marked, so that a race of two milliseconds
//! can be seen beside a pause of a minute. It is SVG without scripts; its colours come from the page.

use std::time::Duration;

use super::markup::Markup;
use super::{calls, clipped, effects, spent};
use crate::verify::scenario::Answer;
use crate::verify::scorecard::Finding;

/// Calls drawn one by one; of more, the rest share a lane.
const LANES_MAX: usize = 12;
/// Counts of effects written beside it.
const COUNTS_MAX: usize = 4;

const WIDTH: f64 = 920.0;
const LEFT: f64 = 132.0;
const RIGHT: f64 = 600.0;
const COUNTS_AT: f64 = 728.0;
const LANE: f64 = 24.0;
const BAR: f64 = 12.0;
/// Width of a long pause.
const BREAK: f64 = 52.0;
/// Least width of a bar: what took no time was there all the same.
const BAR_MIN: f64 = 3.0;
/// About as wide as a letter.
const LETTER: f64 = 6.4;

/// What kind of answer a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A success nobody got before.
    Success,
    /// A success with the body of an earlier one.
    Again,
    Refused,
    Error,
    Silent,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Success, Self::Again, Self::Refused, Self::Error, Self::Silent];

    /// Of each answer, in their order.
    pub(super) fn of_all(answers: &[&Answer]) -> Vec<Self> {
        let one = |(at, answer): (usize, &&Answer)| match &answer.reply {
            Err(_) => Self::Silent,
            Ok(reply) => match reply.status {
                ..300 => {
                    let earlier = answers.iter().enumerate().any(|(other_at, other)| {
                        (other.ended, other_at) < (answer.ended, at)
                            && other
                                .reply
                                .as_ref()
                                .is_ok_and(|other| other.status == reply.status && other.body == reply.body)
                    });
                    if earlier { Self::Again } else { Self::Success }
                }
                300..500 => Self::Refused,
                500.. => Self::Error,
            },
        };
        answers.iter().enumerate().map(one).collect()
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Again => "again",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Silent => "silent",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Again => "the same success again",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Silent => "no whole answer",
        }
    }
}

/// The picture, or nothing if nothing was sent.
pub(super) fn draw(finding: &Finding) -> Markup {
    let answers: Vec<&Answer> = calls(finding).filter_map(|(_, answer)| answer).collect();
    if answers.is_empty() {
        return Markup::default();
    }
    let kinds = Kind::of_all(&answers);
    let lanes = lanes(&kinds);
    let condensed = answers.len() - lanes.len();
    let scale = Scale::of(finding, &answers);
    let marks = marks(finding, &scale);
    let rows = marks.iter().map(|mark| mark.row + 1).max().unwrap_or(0);
    let top = 10.0 + rows as f64 * 16.0;
    let lanes_end = top + (lanes.len() + usize::from(condensed > 0)) as f64 * LANE;
    let counts_end = top + effects(finding).len().min(COUNTS_MAX + 1) as f64 * 34.0;
    let height = lanes_end.max(counts_end - 20.0) + 52.0;

    let mut svg = Markup::default();
    svg.raw("<svg class=\"picture\" viewBox=\"0 0 ").number(WIDTH).raw(" ").number(height);
    svg.raw("\" role=\"img\" aria-label=\"").text(&alternative(finding, &answers)).raw("\">");
    axis(&mut svg, &scale, top, lanes_end);
    for mark in &marks {
        mark.draw(&mut svg, lanes_end);
    }
    for (row, at) in lanes.iter().enumerate() {
        lane(&mut svg, &scale, answers[*at], kinds[*at], top + row as f64 * LANE);
    }
    if condensed > 0 {
        let rest = (0..answers.len()).filter(|at| !lanes.contains(at));
        band(&mut svg, &scale, &answers, &kinds, &rest.collect::<Vec<_>>(), lanes_end - LANE);
    }
    counts(&mut svg, finding, top);
    legend(&mut svg, &kinds, height - 10.0);
    svg.raw("</svg>");
    svg
}

/// Which answers have a lane of their own: first successes before all, because they are what went wrong.
fn lanes(kinds: &[Kind]) -> Vec<usize> {
    if kinds.len() <= LANES_MAX + 1 {
        return (0..kinds.len()).collect();
    }
    let (first, rest): (Vec<usize>, Vec<usize>) =
        (0..kinds.len()).partition(|at| matches!(kinds[*at], Kind::Success | Kind::Error));
    let mut lanes: Vec<usize> = first.into_iter().chain(rest).take(LANES_MAX).collect();
    lanes.sort_unstable();
    lanes
}

fn alternative(finding: &Finding, answers: &[&Answer]) -> String {
    let mut parts: Vec<String> = answers.iter().take(LANES_MAX).map(|answer| said(answer)).collect();
    if answers.len() > LANES_MAX {
        parts.push(format!("and {} more", answers.len() - LANES_MAX));
    }
    parts.extend(finding.seen.events.iter().map(|(what, ..)| clipped(what, 60).0.to_owned()));
    parts.extend(effects(finding).into_iter().map(|(line, _)| line));
    format!("Timeline. {}.", parts.join("; "))
}

fn said(answer: &Answer) -> String {
    let became = match &answer.reply {
        Ok(reply) => reply.status.to_string(),
        Err(why) => clipped(why, 60).0.to_owned(),
    };
    let took = spent(answer.ended.saturating_sub(answer.sent));
    format!("{}: {became} after {took}", clipped(&answer.name, 40).0)
}

/// Time to the right, with long pauses made short.
struct Scale {
    pieces: Vec<Piece>,
}

struct Piece {
    from: f64,
    to: f64,
    left: f64,
    right: f64,
    is_break: bool,
}

impl Scale {
    fn of(finding: &Finding, answers: &[&Answer]) -> Self {
        let micros = |time: Duration| time.as_micros() as f64;
        let mut busy: Vec<(f64, f64)> = answers
            .iter()
            .map(|answer| (micros(answer.sent), micros(answer.ended).max(micros(answer.sent))))
            .collect();
        let end =
            finding.seen.events.iter().map(|(.., to)| micros(*to)).chain(busy.iter().map(|(_, to)| *to));
        let end = end.fold(1.0, f64::max);
        busy.sort_by(|one, other| one.0.total_cmp(&other.0));
        let working: f64 = union(&busy).iter().map(|(from, to)| to - from).sum::<f64>().max(end / 1000.0);
        // Pauses longer than this are drawn short.
        let long = working * 0.8;
        let mut edges = vec![(0.0, false)];
        let mut last = 0.0;
        for (from, to) in union(&busy).into_iter().chain([(end, end)]) {
            if from - last > long {
                edges.push((last, false));
                edges.push((from, true));
            }
            last = to;
        }
        edges.push((end, false));
        Self::laid(&edges)
    }

    /// Pieces end at edges; an edge says whether the piece before it is a long pause.
    fn laid(edges: &[(f64, bool)]) -> Self {
        let pairs =
            || edges.windows(2).map(|pair| (pair[0].0, pair[1].0, pair[1].1)).filter(|(a, b, _)| b > a);
        let breaks = pairs().filter(|(.., is_break)| *is_break).count();
        let shown: f64 = pairs().filter(|(.., is_break)| !*is_break).map(|(from, to, _)| to - from).sum();
        let all = RIGHT - LEFT;
        let broken = if shown > 0.0 {
            BREAK.min(all / 2.0 / breaks.max(1) as f64)
        } else {
            all / breaks.max(1) as f64
        };
        let each = if shown > 0.0 { (all - broken * breaks as f64) / shown } else { 0.0 };
        let mut left = LEFT;
        let mut pieces = Vec::new();
        for (from, to, is_break) in pairs() {
            let right = left + if is_break { broken } else { (to - from) * each };
            pieces.push(Piece { from, to, left, right, is_break });
            left = right;
        }
        Self { pieces }
    }

    fn x(&self, time: Duration) -> f64 {
        let at = time.as_micros() as f64;
        let piece = self.pieces.iter().find(|piece| at <= piece.to);
        let Some(piece) = piece else { return RIGHT };
        piece.left + (at - piece.from).max(0.0) / (piece.to - piece.from) * (piece.right - piece.left)
    }
}

/// Intervals that touch, as one.
fn union(sorted: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (from, to) in sorted {
        match joined.last_mut() {
            Some(last) if *from <= last.1 => last.1 = last.1.max(*to),
            _ => joined.push((*from, *to)),
        }
    }
    joined
}

fn axis(svg: &mut Markup, scale: &Scale, top: f64, bottom: f64) {
    let shown = scale.pieces.iter().filter(|piece| !piece.is_break).map(|piece| piece.to - piece.from);
    let step = nice(shown.sum::<f64>() / 6.0);
    // Where a label stands already; pauses are named first.
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for piece in scale.pieces.iter().filter(|piece| piece.is_break) {
        svg.raw("<rect class=\"break\" x=\"").number(piece.left).raw("\" y=\"").number(top);
        svg.raw("\" width=\"").number(piece.right - piece.left).raw("\" height=\"").number(bottom - top);
        svg.raw("\"/>");
        let pause = format!("⋯ {} ⋯", spent(Duration::from_micros((piece.to - piece.from) as u64)));
        tick(svg, &mut taken, (piece.left + piece.right) / 2.0, bottom, &pause);
    }
    for piece in scale.pieces.iter().filter(|piece| !piece.is_break) {
        let mut at = (piece.from / step).ceil() * step;
        while at <= piece.to {
            let time = Duration::from_micros(at as u64);
            let x = scale.x(time);
            svg.raw("<line class=\"grid\" x1=\"").number(x).raw("\" x2=\"").number(x);
            svg.raw("\" y1=\"").number(top).raw("\" y2=\"").number(bottom).raw("\"/>");
            tick(svg, &mut taken, x, bottom, &moment(time, step));
            at += step;
        }
    }
}

/// A label below the axis, if there is room for it.
fn tick(svg: &mut Markup, taken: &mut Vec<(f64, f64)>, x: f64, bottom: f64, text: &str) {
    let half = text.chars().count() as f64 * LETTER / 2.0 + 3.0;
    let (left, right) = (x - half, x + half);
    if taken.iter().all(|(from, to)| right < *from || *to < left) {
        label(svg, "tick middle", x, bottom + 14.0, text);
        taken.push((left, right));
    }
}

/// A time as exact as the steps between the ticks.
fn moment(time: Duration, step: f64) -> String {
    let digits = if step < 10_000.0 { 3 } else { 2 };
    match time >= Duration::from_secs(1) && step < 100_000.0 {
        true => format!("{:.digits$} s", time.as_secs_f64()),
        false => spent(time),
    }
}

/// 1, 2 or 5 times a power of ten, not below.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|nice| *nice >= step).unwrap_or(power)
}

/// A command or pause.
struct Mark<'a> {
    what: &'a str,
    left: f64,
    right: f64,
    row: usize,
}

/// Each in a row in which its name has room.
fn marks<'a>(finding: &'a Finding, scale: &Scale) -> Vec<Mark<'a>> {
    let mut free: Vec<f64> = Vec::new();
    let one = |(what, from, to): &'a (String, Duration, Duration)| {
        let (left, right) = (scale.x(*from), scale.x(*to));
        let what = clipped(what, 24).0;
        let row = free.iter().position(|end| *end < left).unwrap_or(free.len());
        let end = left + what.chars().count() as f64 * LETTER + 10.0;
        if row == free.len() {
            free.push(end);
        } else {
            free[row] = end;
        }
        Mark { what, left, right, row }
    };
    finding.seen.events.iter().map(one).collect()
}

impl Mark<'_> {
    fn draw(&self, svg: &mut Markup, bottom: f64) {
        let top = 4.0 + self.row as f64 * 16.0;
        svg.raw("<rect class=\"during\" x=\"").number(self.left).raw("\" y=\"").number(top);
        svg.raw("\" width=\"").number((self.right - self.left).max(1.0));
        svg.raw("\" height=\"").number(bottom - top).raw("\"/><line class=\"mark\" x1=\"").number(self.left);
        svg.raw("\" x2=\"").number(self.left).raw("\" y1=\"").number(top).raw("\" y2=\"").number(bottom);
        svg.raw("\"/>");
        label(svg, "mark-name", self.left + 4.0, top + 10.0, self.what);
    }
}

fn lane(svg: &mut Markup, scale: &Scale, answer: &Answer, kind: Kind, top: f64) {
    let (left, right) = (scale.x(answer.sent), scale.x(answer.ended));
    let right = right.max(left + BAR_MIN);
    let text = top + LANE / 2.0 + 4.0;
    label(svg, "name end", LEFT - 10.0, text, clipped(&answer.name, 18).0);
    bar(svg, kind, left, right, top);
    svg.raw("<title>").text(&said(answer)).raw("</title></rect>");
    let status = match (&answer.reply, kind) {
        (Ok(reply), Kind::Again) => format!("{} again", reply.status),
        (Ok(reply), _) => reply.status.to_string(),
        (Err(why), _) => clipped(why, 18).0.to_owned(),
    };
    svg.raw("<text class=\"status ").raw(kind.class()).raw("\" x=\"").number(right + 5.0);
    svg.raw("\" y=\"").number(text).raw("\">").text(&status).raw("</text>");
}

fn bar(svg: &mut Markup, kind: Kind, left: f64, right: f64, top: f64) {
    svg.raw("<rect class=\"bar ").raw(kind.class()).raw("\" rx=\"3\" x=\"").number(left);
    svg.raw("\" y=\"").number(top + (LANE - BAR) / 2.0).raw("\" width=\"").number(right - left);
    svg.raw("\" height=\"").number(BAR).raw("\">");
}

/// All the others in one lane, laid over one another.
fn band(svg: &mut Markup, scale: &Scale, answers: &[&Answer], kinds: &[Kind], rest: &[usize], top: f64) {
    label(svg, "name end", LEFT - 10.0, top + LANE / 2.0 + 4.0, &format!("{} more", rest.len()));
    svg.raw("<g class=\"band\">");
    let mut end = LEFT;
    for at in rest {
        let (left, right) = (scale.x(answers[*at].sent), scale.x(answers[*at].ended));
        bar(svg, kinds[*at], left, right.max(left + BAR_MIN), top);
        svg.raw("</rect>");
        end = right.max(end);
    }
    svg.raw("</g>");
    label(svg, "status", end + 5.0, top + LANE / 2.0 + 4.0, &tally(rest.iter().map(|at| answers[*at])));
}

/// `48 × 409, 4 × no answer`.
pub(super) fn tally<'a>(answers: impl Iterator<Item = &'a Answer>) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for answer in answers {
        let kind = answer.reply.as_ref().map_or("no answer".to_owned(), |reply| reply.status.to_string());
        match kinds.iter_mut().find(|(there, _)| *there == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    kinds.iter().map(|(kind, count)| format!("{count} × {kind}")).collect::<Vec<_>>().join(", ")
}

fn counts(svg: &mut Markup, finding: &Finding, top: f64) {
    let all = effects(finding);
    for (at, (line, is_right)) in all.iter().take(COUNTS_MAX).enumerate() {
        let class = if *is_right { "count right" } else { "count wrong" };
        let (line, tag) =
            line.split_once(" (").map_or((line.as_str(), None), |(line, tag)| (line, Some(tag)));
        let y = top + 16.0 + at as f64 * 34.0;
        label(svg, class, COUNTS_AT, y, line);
        if let Some(tag) = tag {
            label(svg, "tick", COUNTS_AT, y + 13.0, clipped(tag.trim_end_matches(')'), 26).0);
        }
    }
    if all.len() > COUNTS_MAX {
        let y = top + 16.0 + COUNTS_MAX as f64 * 34.0;
        label(svg, "tick", COUNTS_AT, y, &format!("and {} more counts", all.len() - COUNTS_MAX));
    }
}

fn legend(svg: &mut Markup, kinds: &[Kind], y: f64) {
    let mut x = LEFT;
    for kind in Kind::ALL.into_iter().filter(|kind| kinds.contains(kind)) {
        svg.raw("<rect class=\"bar ").raw(kind.class()).raw("\" rx=\"2\" width=\"10\" height=\"10\" x=\"");
        svg.number(x).raw("\" y=\"").number(y - 9.0).raw("\"/>");
        label(svg, "tick", x + 15.0, y, kind.meaning());
        x += 15.0 + kind.meaning().len() as f64 * LETTER + 18.0;
    }
}

fn label(svg: &mut Markup, class: &'static str, x: f64, y: f64, text: &str) {
    svg.raw("<text class=\"").raw(class).raw("\" x=\"").number(x).raw("\" y=\"").number(y);
    svg.raw("\">").text(text).raw("</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples::{self, answer, silent};
    use crate::verify::scenario::{How, Scenario, Seen, Step};
    use crate::verify::scorecard::Verdict;

    fn race(answers: Vec<Answer>, events: Vec<(String, Duration, Duration)>) -> Finding {
        let request = samples::payment("http://127.0.0.1:1/", "t-1-1", "k");
        let calls = answers.iter().map(|answer| samples::call(&answer.name, &request, How::Plain)).collect();
        let scenario = Scenario { steps: vec![Step::Send(calls)], counts: vec![] };
        samples::found(samples::RACE, Verdict::Pass, scenario, Seen { answers, events, ..Seen::default() })
    }

    #[test]
    fn a_success_with_a_body_seen_before_is_the_same_one_again() {
        let answers = [
            answer("late", 0, 9, 201, "a"),
            answer("early", 0, 5, 201, "a"),
            answer("other", 0, 7, 201, "b"),
            answer("told", 0, 2, 409, "c"),
            answer("broken", 0, 2, 503, "c"),
            silent("gone", 0, 2, "connection refused"),
        ];
        let kinds = Kind::of_all(&answers.iter().collect::<Vec<_>>());
        let expected = [Kind::Again, Kind::Success, Kind::Success, Kind::Refused, Kind::Error, Kind::Silent];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_wide_race_is_condensed_and_its_successes_stay() {
        let mut answers: Vec<_> = (0..64).map(|at| answer(&format!("racer {at}"), 0, 5, 409, "no")).collect();
        answers[60] = answer("racer 60", 0, 7, 201, "x");
        let svg = draw(&race(answers, vec![])).into_string();
        assert!(svg.contains("racer 60") && svg.contains("52 more") && svg.contains("52 × 409"), "{svg}");
        assert!(!svg.contains(">racer 11<"), "{svg}");
        roxmltree::Document::parse(&svg).unwrap();
    }

    #[test]
    fn a_long_pause_takes_little_room_and_the_rest_keeps_its_order() {
        let minute = Duration::from_secs(60);
        let mut late = answer("retry", 0, 0, 201, "a");
        (late.sent, late.ended) = (minute, minute + Duration::from_millis(5));
        let finding = race(vec![answer("first", 0, 5, 201, "a"), late], vec![]);
        let answers: Vec<_> = finding.seen.answers.iter().collect();
        let scale = Scale::of(&finding, &answers);
        let at: Vec<f64> =
            [0, 5, 30_000, 60_000, 60_005].map(|ms| scale.x(Duration::from_millis(ms))).to_vec();
        assert!(at.is_sorted(), "{at:?}");
        assert_eq!((at[0], at[4]), (LEFT, RIGHT));
        assert!((at[3] - at[1] - BREAK).abs() < 0.1, "{at:?}");
        let svg = draw(&finding).into_string();
        assert!(svg.contains("⋯ 60 s ⋯") && svg.contains(">60.004 s<"), "{svg}");
    }

    #[test]
    fn a_picture_of_nothing_or_of_no_time_at_all_is_drawn_too() {
        assert_eq!(draw(&race(vec![], vec![])).into_string(), "");
        let svg = draw(&race(vec![answer("now", 0, 0, 200, "")], vec![])).into_string();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        roxmltree::Document::parse(&svg).unwrap();
    }
}
