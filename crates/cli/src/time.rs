//! Points in time as people and machines read them: RFC 3339, UTC, to the microsecond.

use std::time::Duration;

use semel::Timestamp;

const DAY: i64 = 86_400_000_000;

/// `2026-11-16T04:00:00.123456Z`
pub(crate) fn write(at: Timestamp) -> String {
    let (days, of_day) = (at.as_micros().div_euclid(DAY), at.as_micros().rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The same without the fraction of a second.
pub(crate) fn short(text: &str) -> String {
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text.to_owned(),
    }
}

/// Reads what [`write`] wrote.
pub(crate) fn read(text: &str) -> Option<Timestamp> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let shape = text.len() == 27 && text.ends_with('Z');
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let seconds = (hour * 60 + minute) * 60 + second;
    let at = Timestamp::from_micros(days(year, month, day) * DAY + seconds * 1_000_000 + number(20, 26)?);
    // Writing it again refuses the 31st of February and wrong marks between the numbers.
    (shape && write(at) == text).then_some(at)
}

/// Year, month and day of a number of days since 1970-01-01. Years are counted from March, so that a
/// leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The other way round.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march = (month + 9) % 12;
    let of_year = (153 * march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The two largest parts of a duration: `3d 4h`, `12m 5s`, `0s`.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let parts =
        [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown: Vec<String> = parts[first..]
        .iter()
        .take(2)
        .enumerate()
        .filter(|(at, (count, _))| *at == 0 || *count > 0)
        .map(|(_, (count, unit))| format!("{count}{unit}"))
        .collect();
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_back() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_794_801_600_123_456, "2026-11-16T04:00:00.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(write(Timestamp::from_micros(micros)), text);
            assert_eq!(read(text), Some(Timestamp::from_micros(micros)));
        }
        for day in (-800_000..800_000).step_by(97) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day);
        }
        for not in ["", "2026-02-31T00:00:00.000000Z", "2026-11-16 04:00:00.123456Z", "2026-11-16T04:00:00Z"]
        {
            assert_eq!(read(not), None, "{not}");
        }
    }

    #[test]
    fn spans_show_their_two_largest_parts() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (725, "12m 5s"),
            (3600, "1h"),
            (3605, "1h"),
            (273_900, "3d 4h"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
