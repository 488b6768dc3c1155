//! A failed check as a shell script that fails the same way, with nothing but bash and curl.
//!
//! The script plays the same scenario under new tags and keys, so that it can be run again and again. It
//! judges by counting effects if that is how the flaw was found and there is a command that counts; otherwise
//! by whether the service answers as it did then. It knows no rule: what was seen was judged wrong by a check,
//! and a service that was mended answers otherwise. It holds no secret; it asks for them in variables.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::{all_calls, allowed, printable};
use super::safety::command_shown;
use super::scenario::{Answer, Call, Hook, How, Region, Reply, Step};
use super::scorecard::{Finding, Scorecard, Verdict};
use super::setup::Setup;
use super::template::Request;

use shell::{Names, quote};

mod shell;
#[cfg(test)]
mod tests;

const FRAME: &str = include_str!("repro/frame.sh");

/// Luck decides races: so often one is tried before it is said not to show.
const RACE_ROUNDS: usize = 20;
/// And where a kill meets a request. It comes later in each round: bash and curl are slow to begin.
const CRASH_ROUNDS: usize = 10;
const LATER_MS: usize = 40;
/// A scenario that waits longer than this is tried once.
const WAIT_SHORT: Duration = Duration::from_millis(500);
/// Characters of a name in what a script prints.
const NAME_MAX: usize = 40;

/// The script, if the check failed. Ends with 1 if the flaw shows, 0 if not, 2 if it cannot be tried.
pub(crate) fn script(finding: &Finding, setup: &Setup) -> Option<String> {
    let Verdict::Fail { cause, what, .. } = &finding.verdict else { return None };
    let play = Play::of(finding, setup);
    let about = finding.about;
    let mut script = String::from("#!/usr/bin/env bash\n");
    comment(&mut script, &format!("semel verify found this: {} ({})", about.id, about.rules.join(", ")));
    comment(&mut script, &format!("Must be true: {}", about.must));
    comment(&mut script, &format!("Was seen: {} ({cause}, seed {})", printable(what), setup.seed));
    comment(&mut script, "");
    comment(
        &mut script,
        "Exits with 1 if it shows again, with 0 if it does not, and with 2 if it could not be tried.",
    );
    comment(
        &mut script,
        "Needs bash and curl. Every run uses new tags and keys. ROUNDS says how often it is tried.",
    );
    let mut own = String::new();
    play.write(&mut own);
    let patience = setup.answer_max.as_secs().max(1).to_string();
    let rounds = play.rounds().to_string();
    script.push('\n');
    script += &frame(&own).replace("@PATIENCE@", &patience).replace("@ROUNDS@", &rounds);
    script += &own;
    Some(script)
}

/// Writes a script for each check that failed, as `<id>.sh`, and says where they are. Makes the directory if
/// there is something to put into it.
pub(crate) fn keep(
    card: &Scorecard,
    setup: &Setup,
    directory: &Path,
) -> std::io::Result<BTreeMap<&'static str, PathBuf>> {
    let mut scripts = BTreeMap::new();
    for finding in &card.findings {
        let Some(text) = script(finding, setup) else { continue };
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}.sh", finding.about.id));
        std::fs::write(&path, text)?;
        #[cfg(unix)]
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        scripts.insert(finding.about.id, path);
    }
    Ok(scripts)
}

/// The functions that a script needs, and no others: people read it.
fn frame(own: &str) -> String {
    let parts: Vec<(Option<&str>, &str)> =
        FRAME.trim_end().split("\n\n").map(|part| (defined(part), part)).collect();
    let mut taken: Vec<bool> = parts.iter().map(|(name, _)| name.is_none()).collect();
    let mut text = own.to_owned();
    text.extend(parts.iter().filter(|(name, _)| name.is_none()).map(|(_, part)| *part));
    loop {
        let next =
            (0..parts.len()).find(|at| !taken[*at] && parts[*at].0.is_some_and(|name| uses(&text, name)));
        let Some(next) = next else { break };
        taken[next] = true;
        text.push_str(parts[next].1);
    }
    let parts = parts.iter().zip(taken).filter(|(_, taken)| *taken);
    parts.map(|((_, part), _)| format!("{part}\n\n")).collect()
}

/// The function that a part of the frame defines.
fn defined(part: &str) -> Option<&str> {
    part.lines().find_map(|line| line.split_once("() {").map(|(name, _)| name))
}

/// Whether a word stands in a text.
fn uses(text: &str, word: &str) -> bool {
    let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.any(|there| there == word)
}

fn comment(script: &mut String, text: &str) {
    put(script, format!("# {text}").trim_end());
}

fn put(script: &mut String, line: &str) {
    writeln!(script, "{line}").expect("text takes all text");
}

/// A finding on its way to become a script.
struct Play<'a> {
    finding: &'a Finding,
    setup: &'a Setup,
    names: Names,
    /// Requests that differ, in the order of their first use.
    requests: Vec<&'a Request>,
    calls: Vec<&'a Call>,
    /// The numbers of the calls of each step that sends.
    groups: Vec<std::ops::Range<usize>>,
}

impl<'a> Play<'a> {
    fn of(finding: &'a Finding, setup: &'a Setup) -> Self {
        let scenario = &finding.scenario;
        let calls: Vec<&Call> = all_calls(scenario).collect();
        let tags: Vec<&str> = scenario.counts.iter().map(|count| count.tag.as_str()).collect();
        let names = Names::of(calls.iter().copied(), &tags, &setup.profile.key_header);
        let mut requests: Vec<&Request> = Vec::new();
        for call in &calls {
            if !requests.contains(&&call.request) {
                requests.push(&call.request);
            }
        }
        let mut groups = Vec::new();
        let mut first = 0;
        for step in &scenario.steps {
            if let Step::Send(calls) | Step::Start(calls) = step {
                groups.push(first..first + calls.len());
                first += calls.len();
            }
        }
        Self { finding, setup, names, requests, calls, groups }
    }

    /// Whether something is killed while a request is on its way.
    fn is_crash(&self) -> bool {
        let steps = &self.finding.scenario.steps;
        let kills = steps.iter().any(|step| matches!(step, Step::Hook(Hook::Kill)));
        kills && steps.iter().any(|step| matches!(step, Step::Start(_)))
    }

    fn rounds(&self) -> usize {
        let steps = &self.finding.scenario.steps;
        if self.is_crash() {
            return CRASH_ROUNDS;
        }
        let is_dear = |step: &Step| match step {
            Step::Hook(_) => true,
            Step::Wait(pause) => *pause > WAIT_SHORT,
            Step::Send(_) | Step::Start(_) | Step::Join => false,
        };
        let is_race = |step: &Step| match step {
            Step::Send(calls) => calls.len() > 1,
            Step::Start(_) => true,
            Step::Join | Step::Wait(_) | Step::Hook(_) => false,
        };
        match steps.iter().any(is_race) && !steps.iter().any(is_dear) {
            true => RACE_ROUNDS,
            false => 1,
        }
    }

    fn write(&self, script: &mut String) {
        for (variable, what) in self.names.needed() {
            put(script, &format!("needs {variable} {}", quote(what.as_bytes())));
        }
        for hook in [Hook::Kill, Hook::Start, Hook::StoreStop, Hook::StoreStart] {
            let is_run =
                self.finding.scenario.steps.iter().any(|step| matches!(step, Step::Hook(is) if *is == hook));
            let (word, variable) = words(hook);
            if is_run && self.setup.hooks.shell(hook).is_some_and(|command| has_secret(&command)) {
                put(script, &format!("needs {variable} 'the command for {word}, which holds a password'"));
            }
        }
        if let Some(counter) = self.counter() {
            comment(script, "Prints how many effects carry $tag.");
            put(script, &format!("counter={}", quote(counter.as_bytes())));
        }
        put(script, "");
        comment(script, "What is new in every round, and the bodies with it.");
        put(script, "names() {");
        for line in &self.names.made {
            put(script, &format!("  {line}"));
        }
        for (at, request) in self.requests.iter().enumerate() {
            put(script, &format!("  {}", self.body(at + 1, request)));
        }
        put(script, "}\n");
        for (at, request) in self.requests.iter().enumerate() {
            self.request(script, at + 1, request);
        }
        put(script, "play() {\n  started=");
        let mut first = 0;
        for step in &self.finding.scenario.steps {
            self.step(script, step, &mut first);
        }
        put(script, "  wait $started\n}\n");
        self.judge(script);
        let answers = (0..self.calls.len()).any(|at| comes_whole(self.calls[at]) && self.reply(at).is_some());
        script.push_str(&MAIN.replace("@ANSWERED@", if answers { "" } else { "yes" }));
    }

    fn request(&self, script: &mut String, number: usize, request: &Request) {
        let key_header = &self.setup.profile.key_header;
        put(script, &format!("request_{number}() {{"));
        put(script, &format!("  method={}", quote(request.method.as_bytes())));
        put(script, &format!("  url={}", self.names.url(&request.url)));
        put(script, "  headers=(");
        for (name, value) in &request.headers {
            put(script, &format!("    {}", self.names.header(name, value, key_header)));
        }
        put(script, "  )");
        put(script, &format!("  body=$work/sent.{number}\n}}\n"));
    }

    /// A command that writes the body of a request into its file.
    fn body(&self, number: usize, request: &Request) -> String {
        // A word cannot hold a zero byte, so that printf has to make it.
        let parts =
            request.body.split(|byte| *byte == 0).map(|part| format!("printf %s {}", self.names.word(part)));
        let parts: Vec<String> = parts.collect();
        format!("{{ {}; }} >\"$work/sent.{number}\"", parts.join("; printf '\\0'; "))
    }

    fn step(&self, script: &mut String, step: &Step, first: &mut usize) {
        match step {
            Step::Send(calls) => {
                let lines = self.lines(*first, calls);
                *first += calls.len();
                if let [line] = lines.as_slice() {
                    put(script, &format!("  {line}"));
                    return;
                }
                put(script, "  now=");
                for line in lines {
                    put(script, &format!("  {line} &\n  now=\"$now $!\""));
                }
                put(script, "  wait $now");
            }
            Step::Start(calls) => {
                for line in self.lines(*first, calls) {
                    put(script, &format!("  {line} &\n  started=\"$started $!\""));
                }
                *first += calls.len();
            }
            Step::Join => put(script, "  wait $started\n  started="),
            Step::Wait(pause) => put(script, &format!("  sleep {}", seconds(*pause))),
            Step::Hook(hook) => {
                if *hook == Hook::Kill && self.is_crash() {
                    let later = format!("$(((round - 1) * {LATER_MS} % 1000))");
                    put(script, &format!("  sleep \"$(printf '0.%03d' \"{later}\")\""));
                }
                self.hook(script, *hook);
            }
        }
    }

    /// A command for each call, and one for those that share a connection.
    fn lines(&self, first: usize, calls: &[Call]) -> Vec<String> {
        let mut lines: Vec<(Option<How>, String)> = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            let request = self.requests.iter().position(|request| **request == call.request).unwrap_or(0) + 1;
            let what = format!("{} {} request_{request}", first + at + 1, quote(name(call).as_bytes()));
            let shared = matches!(call.how, How::Pipelined(_) | How::Http2(_)).then_some(call.how);
            if shared.is_some()
                && let Some((_, line)) = lines.iter_mut().find(|(how, _)| *how == shared)
            {
                line.push_str(&format!(" {what}"));
                continue;
            }
            let line = match call.how {
                How::Plain => format!("call {what}"),
                How::Cut(Region::BeforeHead) => format!("cut_off {what} before-head"),
                How::Cut(Region::InHead) => format!("cut_off {what} in-head"),
                How::Cut(Region::InBody) => format!("cut_off {what} in-body"),
                How::Abort(after) => format!("abort {what} {}", seconds(after)),
                How::Slow { pieces, pause } => format!("slow {what} {} {}", pieces.max(1), seconds(pause)),
                How::Pipelined(_) => format!("pipelined {what}"),
                How::Http2(_) => format!("http2 {what}"),
            };
            lines.push((shared, line));
        }
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn hook(&self, script: &mut String, hook: Hook) {
        let (word, variable) = words(hook);
        match self.setup.hooks.shell(hook) {
            Some(command) if has_secret(&command) => {
                put(script, &format!("  hook {word} \"${variable}\""));
            }
            Some(command) => put(script, &format!("  hook {word} {}", quote(command.as_bytes()))),
            None => put(script, &format!("  stop 'there is no command for {word}'")),
        }
        if hook == Hook::Start && !self.requests.is_empty() {
            put(script, "  ready request_1");
        }
    }

    /// The command that counts, if counting is what showed the flaw.
    fn counter(&self) -> Option<String> {
        let finding = self.finding;
        let mut pairs = finding.scenario.counts.iter().zip(&finding.seen.effects);
        let is_wrong = pairs.any(|(count, seen)| seen.is_some_and(|seen| !count.allowed.contains(&seen)));
        if is_wrong { self.setup.effects.as_ref().and_then(|effects| effects.shell()) } else { None }
    }

    fn judge(&self, script: &mut String) {
        put(script, "judge() {");
        if self.counter().is_some() {
            for count in &self.finding.scenario.counts {
                let (least, most) = (*count.allowed.start(), (*count.allowed.end()).min(i64::MAX as u64));
                let tag = self.names.variable(&count.tag).unwrap_or_default();
                let words = quote(allowed(&count.allowed).as_bytes());
                put(script, &format!("  effects \"${tag}\" {least} {most} {words}"));
            }
            put(script, "}\n");
            return;
        }
        let looks = self.looks();
        put(script, "  local seen");
        put(script, "  seen=$(");
        for (look, _) in &looks {
            put(script, &format!("    {look}"));
        }
        put(script, "  )");
        let expected: Vec<&str> = looks.iter().map(|(_, expected)| expected.as_str()).collect();
        let expected = quote(expected.join("\n").as_bytes());
        put(
            script,
            &format!("  [ \"$seen\" != {expected} ] || flaw=\"the service still answers like this: $seen\""),
        );
        put(script, "}\n");
    }

    /// Commands that look at the answers, and what each printed when the flaw was found.
    fn looks(&self) -> Vec<(String, String)> {
        let mut looks = Vec::new();
        for group in &self.groups {
            let whole: Vec<usize> = group.clone().filter(|at| comes_whole(self.calls[*at])).collect();
            match whole.as_slice() {
                [] => {}
                [at] => self.look_at(*at, &mut looks),
                many => looks.push(self.look_at_race(many)),
            }
        }
        self.compare(&mut looks);
        looks
    }

    fn answer(&self, at: usize) -> Option<&Answer> {
        self.finding.seen.answers.get(at)
    }

    fn reply(&self, at: usize) -> Option<&Reply> {
        self.answer(at).and_then(|answer| answer.reply.as_ref().ok())
    }

    fn status(&self, at: usize) -> String {
        self.reply(at).map_or("no answer".to_owned(), |reply| reply.status.to_string())
    }

    fn look_at(&self, at: usize, looks: &mut Vec<(String, String)>) {
        let (number, name) = (at + 1, name(self.calls[at]));
        let quoted = quote(name.as_bytes());
        looks.push((format!("see_status {number} {quoted}"), format!("{name}: {}", self.status(at))));
        let Some(reply) = self.reply(at).filter(|_| has_head(self.calls[at])) else { return };
        let profile = &self.setup.profile;
        let mut headers: Vec<(&str, &str)> = Vec::new();
        if let Some((header, value)) = &profile.replay_marker {
            headers.push((header, value));
        }
        if profile.problems && reply.status >= 400 {
            headers.push(("content-type", "application/problem+json"));
        }
        if profile.in_flight.contains(&reply.status) {
            headers.push(("retry-after", ""));
        }
        headers.extend(profile.headers_dropped.iter().map(|header| (header.as_str(), "")));
        for (header, start) in headers {
            let is = |(there, value): &(String, Vec<u8>)| {
                there.eq_ignore_ascii_case(header) && value.starts_with(start.as_bytes())
            };
            let has = if reply.headers.iter().any(is) { "yes" } else { "no" };
            let (word, start) = (quote(header.as_bytes()), quote(format!("+{start}").as_bytes()));
            looks.push((
                format!("see_header {number} {quoted} {word} {start}"),
                format!("{name} has {header}: {has}"),
            ));
        }
    }

    /// Of a race only what does not depend on who came first.
    fn look_at_race(&self, many: &[usize]) -> (String, String) {
        let numbers = many.iter().map(|at| (at + 1).to_string()).collect::<Vec<_>>().join(" ");
        let mut bodies: Vec<&[u8]> =
            many.iter().filter(|at| has_head(self.calls[**at])).filter_map(|at| self.success(*at)).collect();
        bodies.sort_unstable();
        bodies.dedup();
        if bodies.len() > 1 {
            return (format!("see_successes {numbers}"), "several different successes".to_owned());
        }
        let mut statuses: Vec<String> = many.iter().map(|at| self.status(*at)).collect();
        statuses.sort();
        statuses.dedup();
        let list: String = statuses.iter().map(|status| format!(" {status},")).collect();
        (format!("see_statuses {numbers}"), format!("statuses:{list}"))
    }

    fn success(&self, at: usize) -> Option<&[u8]> {
        self.reply(at).filter(|reply| (200..300).contains(&reply.status)).map(|reply| reply.body.as_ref())
    }

    /// Whether successes under one key are the same: alone in their step, and come whole.
    fn compare(&self, looks: &mut Vec<(String, String)>) {
        let alone = |group: &std::ops::Range<usize>| {
            let mut whole = group.clone().filter(|at| comes_whole(self.calls[*at]));
            whole.next().filter(|at| whole.next().is_none() && has_head(self.calls[*at]))
        };
        let alone: Vec<usize> =
            self.groups.iter().filter_map(alone).filter(|at| self.success(*at).is_some()).collect();
        for (at, later) in alone.iter().enumerate() {
            let key = self.key(*later);
            let first = alone[..at].iter().find(|first| key.is_some() && self.key(**first) == key);
            let Some(first) = first else { continue };
            let both = format!("{} and {}", name(self.calls[*first]), name(self.calls[*later]));
            let (numbers, quoted) = (format!("{} {}", first + 1, later + 1), quote(both.as_bytes()));
            let same = if self.success(*first) == self.success(*later) { "are the same" } else { "differ" };
            looks.push((format!("see_same {numbers} {quoted}"), format!("the bodies of {both} {same}")));
            for header in self.headers_that_differ(*first, *later) {
                let word = quote(header.as_bytes());
                looks.push((
                    format!("see_same_header {numbers} {quoted} {word}"),
                    format!("{header} of {both} differs"),
                ));
            }
        }
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        let headers = &self.calls[at].request.headers;
        let key = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(&self.setup.profile.key_header));
        key.map(|(_, value)| {
            value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
        })
    }

    /// Names of headers that should have been the same; plain names only, as they become patterns.
    fn headers_that_differ(&self, first: usize, later: usize) -> Vec<String> {
        let (Some(one), Some(other)) = (self.reply(first), self.reply(later)) else { return Vec::new() };
        let profile = &self.setup.profile;
        let marker = profile.replay_marker.as_ref().map(|(name, _)| name.to_ascii_lowercase());
        let mut names: Vec<String> =
            one.headers.iter().chain(&other.headers).map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.sort();
        names.dedup();
        let values = |reply: &Reply, name: &str| -> Vec<Vec<u8>> {
            let of_name = reply.headers.iter().filter(|(there, _)| there.eq_ignore_ascii_case(name));
            of_name.map(|(_, value)| value.clone()).collect()
        };
        let may = |name: &String| {
            profile.may_vary(name)
                || profile.headers_dropped.contains(name)
                || marker.as_ref() == Some(name)
                || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        names.retain(|name| !may(name) && values(one, name) != values(other, name));
        names
    }
}

const MAIN: &str = r#"answered=@ANSWERED@
for ((round = 1; round <= rounds; round++)); do
  rm -f "$work"/*
  flaw=
  names
  printf 'round %d of %d\n' "$round" "$rounds"
  play
  for head in "$work"/*.head; do [ ! -e "$head" ] || answered=yes; done
  judge
  if [ -n "$flaw" ]; then
    printf 'the flaw shows: %s\n' "$flaw"
    exit 1
  fi
done
[ -n "$answered" ] || stop 'the service answered nothing'
printf 'the flaw does not show\n'
exit 0
"#;

/// What a command is called in a script, and the variable of one that is not written into it.
fn words(hook: Hook) -> (&'static str, &'static str) {
    match hook {
        Hook::Kill => ("kill", "KILL_COMMAND"),
        Hook::Start => ("start", "START_COMMAND"),
        Hook::StoreStop => ("store-stop", "STORE_STOP_COMMAND"),
        Hook::StoreStart => ("store-start", "STORE_START_COMMAND"),
    }
}

fn has_secret(command: &str) -> bool {
    command_shown(command) != command
}

/// What a call is called in a script: one line.
fn name(call: &Call) -> String {
    printable(&call.name).chars().take(NAME_MAX).collect()
}

/// Whether an answer is taken as it comes.
fn comes_whole(call: &Call) -> bool {
    !matches!(call.how, How::Cut(_) | How::Abort(_))
}

/// Whether a script gets head and body of the answer, and not its status alone.
fn has_head(call: &Call) -> bool {
    comes_whole(call) && !matches!(call.how, How::Pipelined(_))
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}
