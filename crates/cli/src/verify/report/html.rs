//! The scorecard as one page that needs nothing else: no script, no network, and it prints.

use std::f64::consts::TAU;

use super::markup::Markup;
use super::picture::{self, Kind};
use super::{Report, calls, clipped, effects, how, plural, shown_header, spent, word};
use crate::verify::safety::url_shown;
use crate::verify::scenario::{Answer, Call, Reply};
use crate::verify::scorecard::{Finding, Verdict};
use crate::verify::template::Request;

/// Characters of a body that are shown.
const BODY_MAX: usize = 1500;
/// Characters of anything else that is foreign.
const TEXT_MAX: usize = 1000;
/// Answers shown in full for one check.
const ANSWERS_MAX: usize = 12;
/// Radius of the ring.
const RING: f64 = 52.0;

const HEAD: &str = concat!(
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    // Whatever a service wrote into its answers, the browser fetches and runs nothing.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"semel verify\">\n",
    "<style>\n",
    include_str!("page.css"),
    "</style>\n<title>",
);

/// The whole page.
pub(crate) fn write(report: &Report<'_>) -> String {
    let mut page = Markup::default();
    let headline = headline(report);
    page.raw(HEAD).text(&headline).raw(" · semel verify</title>\n</head>\n<body>\n");
    hero(&mut page, report, &headline);
    page.raw("<main>\n");
    failures(&mut page, report);
    for (family, findings) in report.families() {
        card(&mut page, report, family, &findings);
    }
    page.raw("</main>\n<footer>Made by <b>semel verify</b> ").text(env!("CARGO_PKG_VERSION"));
    page.raw(". Effects are counted at the service, not believed from its answers.</footer>\n");
    page.raw("</body>\n</html>\n");
    page.into_string()
}

fn headline(report: &Report<'_>) -> String {
    let (pass, fail, not_shown) = report.card.totals();
    let all = report.card.findings.len();
    match (fail, pass, not_shown) {
        (1.., ..) => format!("Not idempotent: {fail} of {} failed", plural(all, "check")),
        (0, 0, _) => "Nothing was shown".to_owned(),
        (0, _, 0) => format!("Idempotent: {} passed", plural(all, "check")),
        (0, _, _) => format!("No flaw found: {pass} of {} passed", plural(all, "check")),
    }
}

fn hero(page: &mut Markup, report: &Report<'_>, headline: &str) {
    let card = report.card;
    let (pass, fail, not_shown) = card.totals();
    let class = match (fail, pass) {
        (1.., _) => "<header class=\"fail\">",
        (0, 1..) => "<header class=\"pass\">",
        (0, 0) => "<header class=\"not\">",
    };
    page.raw(class).raw("\n");
    ring(page, pass, fail, not_shown);
    page.raw("<div><p class=\"kind\">Idempotency report</p>\n<h1>").text(headline).raw("</h1>\n");
    page.raw("<p class=\"target\"><code>").text(clipped(&card.target, TEXT_MAX).0).raw("</code></p>\n<dl>");
    let began =
        crate::time::short(&super::json::started(card.started)).replace('T', " ").replace('Z', " UTC");
    for (name, value) in [
        ("passed", pass.to_string()),
        ("failed", fail.to_string()),
        ("not shown", not_shown.to_string()),
        ("requests", card.requests.to_string()),
        ("took", spent(card.took)),
        ("profile", card.profile.clone()),
        ("seed", card.seed.to_string()),
        ("began", began),
    ] {
        page.raw("<div><dt>").text(name).raw("</dt><dd>").text(&value).raw("</dd></div>");
    }
    page.raw("</dl></div>\n</header>\n");
}

/// How many of all passed, as a ring.
fn ring(page: &mut Markup, pass: usize, fail: usize, not_shown: usize) {
    let all = pass + fail + not_shown;
    let label = format!("{pass} of {} passed, {fail} failed, {not_shown} not shown", plural(all, "check"));
    page.raw("<svg class=\"ring\" viewBox=\"0 0 128 128\" role=\"img\" aria-label=\"")
        .text(&label)
        .raw("\">");
    page.raw("<circle class=\"track\" cx=\"64\" cy=\"64\" r=\"").number(RING).raw("\"/>");
    let round = TAU * RING;
    let mut before = 0.0;
    for (count, class) in [(pass, "pass"), (fail, "fail")] {
        let length = round * count as f64 / all.max(1) as f64;
        // A gap between two parts, so that they can be told apart without colours.
        let drawn = if count == all { length } else { (length - 3.0).max(0.0) };
        if count > 0 {
            page.raw("<circle class=\"").raw(class).raw("\" cx=\"64\" cy=\"64\" r=\"").number(RING);
            page.raw("\" stroke-dasharray=\"").number(drawn).raw(" ").number(round - drawn);
            page.raw("\" stroke-dashoffset=\"").number(-before).raw("\" transform=\"rotate(-90 64 64)\"/>");
        }
        before += length;
    }
    page.raw("<text class=\"score\" x=\"64\" y=\"66\">").text(&pass.to_string()).raw("</text>");
    page.raw("<text class=\"of\" x=\"64\" y=\"86\">of ").text(&all.to_string()).raw("</text></svg>\n");
}

/// What failed, first, with the way to it.
fn failures(page: &mut Markup, report: &Report<'_>) {
    let failed: Vec<_> =
        report.card.findings.iter().filter(|found| matches!(found.verdict, Verdict::Fail { .. })).collect();
    if failed.is_empty() {
        return;
    }
    page.raw("<nav class=\"failures\" aria-label=\"What failed\"><h2>What failed</h2><ol>\n");
    for finding in failed {
        let Verdict::Fail { cause, what, .. } = &finding.verdict else { continue };
        page.raw("<li><a href=\"#check-").text(finding.about.id).raw("\"><code>").text(finding.about.id);
        page.raw("</code></a> <span class=\"cause\">").text(cause).raw("</span> ");
        page.text(clipped(what, TEXT_MAX).0).raw("</li>\n");
    }
    page.raw("</ol></nav>\n");
}

fn card(page: &mut Markup, report: &Report<'_>, family: &str, findings: &[&Finding]) {
    let passed = findings.iter().filter(|found| found.verdict == Verdict::Pass).count();
    page.raw("<section class=\"card\"><h2>").text(family).raw(" <small>");
    page.text(&format!("{passed} of {} passed", findings.len()))
        .raw("</small><span class=\"dots\" aria-hidden=\"true\">");
    for finding in findings {
        page.raw("<i class=\"").raw(class(&finding.verdict)).raw("\"></i>");
    }
    page.raw("</span></h2>\n");
    for finding in findings {
        row(page, report, finding);
    }
    page.raw("</section>\n");
}

fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail { .. } => "fail",
        Verdict::NotShown(_) => "not",
    }
}

fn row(page: &mut Markup, report: &Report<'_>, finding: &Finding) {
    let (about, verdict) = (finding.about, &finding.verdict);
    page.raw("<details class=\"").raw(class(verdict)).raw("\" id=\"check-").text(about.id).raw("\"");
    page.raw(if matches!(verdict, Verdict::Fail { .. }) { " open>" } else { ">" });
    let sign = match verdict {
        Verdict::Pass => "✓",
        Verdict::Fail { .. } => "✗",
        Verdict::NotShown(_) => "·",
    };
    page.raw("<summary><span class=\"sign\" role=\"img\" aria-label=\"")
        .raw(word(verdict))
        .raw("\">")
        .raw(sign);
    page.raw("</span><span class=\"said\"><code class=\"id\">")
        .text(about.id)
        .raw("</code> ")
        .text(about.must);
    if let Verdict::NotShown(reason) = verdict {
        page.raw(" <span class=\"reason\">Not shown: ").text(clipped(reason, TEXT_MAX).0).raw("</span>");
    }
    page.raw("</span><span class=\"rules\">");
    for rule in about.rules {
        page.raw("<span class=\"rule\">").text(rule).raw("</span>");
    }
    page.raw("</span><span class=\"took\">")
        .text(&spent(finding.took))
        .raw("</span></summary>\n<div class=\"open\">\n");
    if let Verdict::Fail { cause, what, advice } = verdict {
        page.raw("<div class=\"why\"><p><span class=\"cause\">").text(cause).raw("</span> <b>");
        page.text(clipped(what, TEXT_MAX).0).raw("</b></p>\n<p>").text(advice).raw("</p>\n");
        if let Some(script) = report.script(finding) {
            page.raw("<p class=\"again\">See it again: <code>bash ").text(&script).raw("</code></p>\n");
        }
        page.raw("</div>\n");
    }
    let picture = picture::draw(finding);
    page.raw("<div class=\"frame\">").append(&picture).raw("</div>\n");
    seen(page, finding);
    page.raw("</div></details>\n");
}

/// What was sent and what came back.
fn seen(page: &mut Markup, finding: &Finding) {
    let all: Vec<(&Call, Option<&Answer>)> = calls(finding).collect();
    if all.is_empty() {
        page.raw("<p class=\"nothing\">Nothing was sent for this check.</p>\n");
        return;
    }
    page.raw("<details class=\"inner\"><summary>What was sent and what came back</summary>\n");
    sent(page, &all);
    came(page, &all);
    let lines = effects(finding);
    if !lines.is_empty() {
        page.raw("<ul class=\"effects\">");
        for (line, is_right) in lines {
            page.raw(if is_right { "<li>" } else { "<li class=\"wrong\">" }).text(&line).raw("</li>");
        }
        page.raw("</ul>\n");
    }
    page.raw("</details>\n");
}

/// Requests that are the same are shown once, with the names of their calls.
fn sent(page: &mut Markup, all: &[(&Call, Option<&Answer>)]) {
    let mut requests: Vec<(&Request, Vec<&Call>)> = Vec::new();
    for (call, _) in all {
        match requests.iter_mut().find(|(request, _)| **request == call.request) {
            Some((_, calls)) => calls.push(call),
            None => requests.push((&call.request, vec![call])),
        }
    }
    for (request, calls) in requests.iter().take(ANSWERS_MAX) {
        let name = |call: &&Call| {
            let how = how(call.how).map_or(String::new(), |how| format!(" ({how})"));
            format!("{}{how}", clipped(&call.name, TEXT_MAX).0)
        };
        let mut names: Vec<String> = calls.iter().take(ANSWERS_MAX).map(name).collect();
        if calls.len() > ANSWERS_MAX {
            names.push(format!("and {} more", calls.len() - ANSWERS_MAX));
        }
        page.raw("<h4>Sent: ").text(&names.join(", ")).raw("</h4><pre>");
        page.text(&request.method).raw(" ").text(clipped(&url_shown(&request.url), TEXT_MAX).0).raw("\n");
        message(page, &request.headers, &request.body);
        page.raw("</pre>\n");
    }
    more(page, requests.len(), "requests");
}

fn came(page: &mut Markup, all: &[(&Call, Option<&Answer>)]) {
    let answers: Vec<&Answer> = all.iter().filter_map(|(_, answer)| *answer).collect();
    let kinds = Kind::of_all(&answers);
    for (answer, kind) in answers.iter().zip(kinds).take(ANSWERS_MAX) {
        let took = spent(answer.ended.saturating_sub(answer.sent));
        page.raw("<h4>Came: ").text(clipped(&answer.name, TEXT_MAX).0).raw(" <span class=\"status ");
        page.raw(kind.class()).raw("\">");
        match &answer.reply {
            Ok(Reply { status, headers, body }) => {
                page.text(&status.to_string()).raw("</span> after ").text(&took).raw("</h4><pre>");
                message(page, headers, body);
                page.raw("</pre>\n");
            }
            Err(why) => {
                page.text(clipped(why, TEXT_MAX).0).raw("</span> after ").text(&took).raw("</h4>\n");
            }
        }
    }
    more(page, answers.len(), "answers");
}

fn more(page: &mut Markup, all: usize, things: &str) {
    if all > ANSWERS_MAX {
        page.raw("<p class=\"nothing\">And ")
            .text(&format!("{} more {things}.", all - ANSWERS_MAX))
            .raw("</p>\n");
    }
}

fn message(page: &mut Markup, headers: &[(String, Vec<u8>)], body: &[u8]) {
    for (name, value) in headers {
        page.raw("<span class=\"header\">").text(clipped(name, TEXT_MAX).0).raw(":</span> ");
        page.text(clipped(&shown_header(name, value), TEXT_MAX).0).raw("\n");
    }
    if body.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(body);
    let (start, more) = clipped(&text, BODY_MAX);
    page.raw("\n").text(start);
    if more.is_some() {
        page.raw("\n<span class=\"clipped\">… the first ").text(&BODY_MAX.to_string());
        page.raw(" characters of ").text(&body.len().to_string()).raw(" bytes</span>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples;

    /// The page as a strict reader of XML would have it: void elements closed, bare attributes given a value.
    fn well_formed(page: &str) -> String {
        let page = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
        let mut xml = String::new();
        for line in page.split_inclusive('\n') {
            match line.strip_prefix("<meta") {
                Some(_) => xml += &line.replace(">\n", "/>\n"),
                None => xml += &line.replace("\" open>", "\" open=\"\">"),
            }
        }
        xml
    }

    #[test]
    fn nothing_foreign_becomes_markup_and_nothing_is_fetched() {
        let sample = samples::hostile();
        let page = write(&sample.report());
        assert!(!page.contains(samples::SECRET));
        let xml = well_formed(&page);
        let document = roxmltree::Document::parse(&xml).unwrap();
        for node in document.descendants().filter(roxmltree::Node::is_element) {
            let name = node.tag_name().name();
            assert!(!["script", "img", "link", "iframe", "object", "base", "form"].contains(&name), "{name}");
            for attribute in node.attributes() {
                let (name, value) = (attribute.name(), attribute.value());
                assert!(!name.starts_with("on") && name != "src" && name != "style", "{name}={value}");
                assert!(name != "href" || value.starts_with('#'), "{name}={value}");
            }
        }
        let style = document.descendants().find(|node| node.has_tag_name("style")).unwrap().text().unwrap();
        assert!(!style.contains("url(") && !style.contains("@import"));
        let text: String = document.descendants().filter_map(|node| node.text()).collect();
        assert!(text.contains("<script>alert(1)</script>") && text.contains("effects: 2, allowed 1"));
        assert!(page.len() < 60_000, "large bodies are clipped: {}", page.len());
    }

    #[test]
    fn the_headline_says_no_more_than_was_shown() {
        let mut sample = samples::hostile();
        let headline = |sample: &samples::Sample| super::headline(&sample.report());
        assert_eq!(headline(&sample), "Not idempotent: 1 of 3 checks failed");
        sample.card.findings.remove(1);
        assert_eq!(headline(&sample), "No flaw found: 1 of 2 checks passed");
        sample.card.findings.remove(1);
        assert_eq!(headline(&sample), "Idempotent: 1 check passed");
        sample.card.findings.clear();
        assert_eq!(headline(&sample), "Nothing was shown");
        assert!(!write(&sample.report()).contains("NaN"));
    }
}
