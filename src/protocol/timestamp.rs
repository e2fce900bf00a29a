//! Points in time as the protocols write them: ISO 8601 in UTC with `Z`, in the proleptic Gregorian calendar.

use std::time::Duration;

const DAY_MS: i64 = 86_400_000;
/// Years between repetitions of the Gregorian calendar, and the days in them.
const ERA_YEARS: i64 = 400;
const ERA_DAYS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAY: i64 = 719_468;
/// The first millisecond of the year 0, and the last of 9999.
const EARLIEST: i64 = -62_167_219_200_000;
const LATEST: i64 = 253_402_300_799_999;

/// Reads `YYYY-MM-DDThh:mm:ss[.fraction]Z` as Unix milliseconds; a fraction of 1 to 9 digits is cut to milliseconds.
/// `None` for any other form, a day that the calendar does not have, and a leap second (as in ECMAScript).
pub fn parse(text: &str) -> Option<i64> {
    let text = text.as_bytes();
    if text.len() < 20 {
        return None;
    }
    let (whole, rest) = text.split_at(19);
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(at, byte)| whole[at] != byte) {
        return None;
    }
    let (year, month, day) = (digits(&whole[..4])?, digits(&whole[5..7])?, digits(&whole[8..10])?);
    let (hour, minute, second) = (digits(&whole[11..13])?, digits(&whole[14..16])?, digits(&whole[17..])?);
    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let millis = match rest {
        [b'Z'] => 0,
        [b'.', fraction @ .., b'Z'] if (1..=9).contains(&fraction.len()) => {
            digits(fraction)? * 1_000_000_000 / 10_i64.pow(fraction.len() as u32) / 1_000_000
        }
        _ => return None,
    };
    Some(days_from_civil(year, month, day) * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + millis)
}

/// Writes Unix milliseconds in the form that [`parse`] reads, always with milliseconds. `None` outside the years 0 to
/// 9999: the form knows no others.
pub fn format(unix_millis: i64) -> Option<String> {
    (EARLIEST..=LATEST).contains(&unix_millis).then(|| write(unix_millis))
}

/// The same for a time that somebody else chose: one outside the form is moved to the nearest end.
pub fn format_nearest(unix_millis: i64) -> String {
    write(unix_millis.clamp(EARLIEST, LATEST))
}

fn write(unix_millis: i64) -> String {
    let (days, in_day) = (unix_millis.div_euclid(DAY_MS), unix_millis.rem_euclid(DAY_MS));
    let (year, month, day) = civil_from_days(days);
    let (seconds, millis) = (in_day / 1000, in_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// At most nine ASCII digits, and nothing else.
fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Years are counted from March, so that the leap day is a year's last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(ERA_YEARS), year.rem_euclid(ERA_YEARS));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA_DAYS + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - EPOCH_DAY
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + EPOCH_DAY;
    let (era, day_of_era) = (shifted.div_euclid(ERA_DAYS), shifted.rem_euclid(ERA_DAYS));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / (ERA_DAYS - 1);
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * ERA_YEARS + year_of_era + i64::from(month <= 2), month, day)
}

/// A span in milliseconds, as points in time count them.
pub fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_points() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-10-17T10:00:00Z", 1_792_231_200_000),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("1969-12-31T23:59:59.9Z", -100),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(parse(text), Some(millis), "{text}");
        }
        assert_eq!(parse("2026-10-17T10:00:00.123456789Z"), Some(1_792_231_200_123));
    }

    #[test]
    fn what_is_no_timestamp() {
        for text in [
            "",
            "2026-10-17",
            "2026-10-17T10:00:00",
            "2026-10-17T10:00Z",
            "2026-10-17 10:00:00Z",
            "2026-10-17t10:00:00z",
            "2026-10-17T10:00:00+00:00",
            "2026-10-17T10:00:00.Z",
            "2026-10-17T10:00:00.1234567890Z",
            "2026-10-17T10:00:00.-1Z",
            "2026-10-17T10:00:60Z",
            "2026-10-17T24:00:00Z",
            "2026-10-17T10:60:00Z",
            "2026-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "+026-01-01T00:00:00Z",
            "2026-1 -01T00:00:00Z",
            "२०२६-10-17T10:00:00Z",
            "2026-10-17T10:00:00ZZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_four_digit_years_are_written() {
        assert_eq!(format(253_402_300_800_000), None);
        assert_eq!(format(-62_167_219_200_001), None);
        assert_eq!(format(i64::MAX), None);
        assert_eq!(format(i64::MIN), None);
        assert_eq!(format(1_792_231_200_000).as_deref(), Some("2026-10-17T10:00:00.000Z"));
        assert_eq!(format_nearest(i64::MIN), "0000-01-01T00:00:00.000Z");
        assert_eq!(format_nearest(i64::MAX), "9999-12-31T23:59:59.999Z");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(millis in EARLIEST..=LATEST) {
            prop_assert_eq!(parse(&format(millis).unwrap()), Some(millis));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            parse(&text);
        }
    }
}
