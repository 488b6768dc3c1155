//! The scorecard as JUnit XML, which every CI system draws: a suite per family, a case per check.

use super::markup::Markup;
use super::{Report, effects};
use crate::verify::scorecard::{Finding, Verdict};

/// The whole document.
pub(crate) fn write(report: &Report<'_>) -> String {
    let card = report.card;
    let (_, failed, not_shown) = card.totals();
    let mut page = Markup::default();
    page.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"semel verify\" tests=\"");
    counts(&mut page, card.findings.len(), failed, not_shown);
    page.raw(" time=\"").text(&seconds(card.took)).raw("\">\n");
    for (family, findings) in report.families() {
        let count = |is: fn(&Verdict) -> bool| findings.iter().filter(|found| is(&found.verdict)).count();
        let failed = count(|verdict| matches!(verdict, Verdict::Fail { .. }));
        let not_shown = count(|verdict| matches!(verdict, Verdict::NotShown(_)));
        page.raw("  <testsuite name=\"").text(family).raw("\" tests=\"");
        counts(&mut page, findings.len(), failed, not_shown);
        let took = findings.iter().map(|finding| finding.took).sum();
        let began = super::json::started(card.started);
        // Without fraction and zone: the schema of JUnit knows neither.
        let began = began.split('.').next().unwrap_or_default();
        page.raw(" time=\"").text(&seconds(took)).raw("\" timestamp=\"").text(began).raw("\">\n");
        page.raw("    <properties>\n");
        for (name, value) in
            [("target", &card.target), ("profile", &card.profile), ("seed", &card.seed.to_string())]
        {
            page.raw("      <property name=\"").text(name).raw("\" value=\"").text(value).raw("\"/>\n");
        }
        page.raw("    </properties>\n");
        for finding in findings {
            case(&mut page, report, finding);
        }
        page.raw("  </testsuite>\n");
    }
    page.raw("</testsuites>\n");
    page.into_string()
}

fn counts(page: &mut Markup, tests: usize, failed: usize, not_shown: usize) {
    page.text(&tests.to_string()).raw("\" failures=\"").text(&failed.to_string());
    page.raw("\" errors=\"0\" skipped=\"").text(&not_shown.to_string()).raw("\"");
}

fn case(page: &mut Markup, report: &Report<'_>, finding: &Finding) {
    let about = finding.about;
    page.raw("    <testcase classname=\"semel.verify.").text(about.family).raw("\" name=\"").text(about.id);
    page.raw("\" time=\"").text(&seconds(finding.took));
    match &finding.verdict {
        Verdict::Pass => {
            page.raw("\"/>\n");
        }
        Verdict::NotShown(reason) => {
            page.raw("\">\n      <skipped message=\"").text(reason).raw("\"/>\n    </testcase>\n");
        }
        Verdict::Fail { cause, what, advice } => {
            page.raw("\">\n      <failure type=\"").text(cause).raw("\" message=\"").text(what).raw("\">");
            let mut lines = vec![format!("{} ({})", about.must, about.rules.join(", ")), what.clone()];
            lines.extend(effects(finding).into_iter().map(|(line, _)| line));
            lines.push((*advice).to_owned());
            lines.extend(report.script(finding).map(|script| format!("Again: bash {script}")));
            lines.push(format!("Seed: {}", report.card.seed));
            page.text(&lines.join("\n")).raw("</failure>\n    </testcase>\n");
        }
    }
}

fn seconds(time: std::time::Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples;

    #[test]
    fn a_strict_reader_of_xml_finds_every_case() {
        let sample = samples::hostile();
        let text = write(&sample.report());
        let document = roxmltree::Document::parse(&text).unwrap();
        let root = document.root_element();
        assert_eq!(root.attribute("tests"), Some("3"));
        assert_eq!(root.attribute("failures"), Some("1"));
        assert_eq!(root.attribute("skipped"), Some("1"));
        let all = |name: &'static str| document.descendants().filter(move |node| node.has_tag_name(name));
        assert_eq!(all("testsuite").count(), 2);
        let names: Vec<_> = all("testcase").filter_map(|node| node.attribute("name")).collect();
        assert_eq!(names, ["replay", "race", "expiry"]);
        let failure = all("failure").next().unwrap();
        assert_eq!(failure.attribute("type"), Some("not-atomic"));
        let said = failure.text().unwrap();
        assert!(said.contains("</failure>]]><script>") && said.contains('␛'), "{said}");
        assert!(
            said.contains("effects: 2, allowed 1") && said.contains("Again: bash repro/race.sh"),
            "{said}"
        );
        assert!(all("skipped").next().unwrap().attribute("message").unwrap().contains("<script>"));
    }
}
