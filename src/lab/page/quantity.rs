//! Figures with their units, short, as people read them: three significant digits, SI steps for
//! counts and times, binary steps for bytes. Pure.

/// What a figure counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// As it is.
    Plain,
    Micros,
    Seconds,
    Count,
    /// Things a second; the axis names the things.
    PerSecond,
    Bytes,
    BytesPerSecond,
    Percent,
}

const NARROW: char = '\u{202f}';

impl Unit {
    /// `value` with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Plain => digits(value),
            Unit::Micros => time(value),
            Unit::Seconds => time(value * 1e6),
            Unit::Count => stepped(value, 1000.0, &["", "k", "M", "G", "T"], ""),
            Unit::PerSecond => stepped(value, 1000.0, &["", "k", "M", "G", "T"], "/s"),
            Unit::Bytes => stepped(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"], ""),
            Unit::BytesPerSecond => {
                stepped(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"], "/s")
            }
            Unit::Percent => format!("{}{NARROW}%", digits(value)),
        }
    }

    /// Whether round figures are powers of two.
    pub fn is_binary(self) -> bool {
        matches!(self, Unit::Bytes | Unit::BytesPerSecond)
    }
}

/// Microseconds, as µs, ms, s, min or h.
fn time(micros: f64) -> String {
    let (value, unit) = match micros.abs() {
        less if less < 1e3 => (micros, "µs"),
        less if less < 1e6 => (micros / 1e3, "ms"),
        less if less < 120e6 => (micros / 1e6, "s"),
        less if less < 7200e6 => (micros / 60e6, "min"),
        _ => (micros / 3600e6, "h"),
    };
    // 999.7 µs is 1 ms when it is rounded.
    match digits(value).as_str() {
        "1000" if unit == "µs" => format!("1{NARROW}ms"),
        "1000" if unit == "ms" => format!("1{NARROW}s"),
        text => format!("{text}{NARROW}{unit}"),
    }
}

fn stepped(value: f64, step: f64, names: &[&str], tail: &str) -> String {
    let mut value = value;
    let mut at = 0;
    // What would be rounded up to a whole step is written as one.
    while value.abs() >= step * 0.9995 && at + 1 < names.len() {
        value /= step;
        at += 1;
    }
    let text = digits(value);
    match names[at] {
        "" => format!("{text}{tail}"),
        name => format!("{text}{NARROW}{name}{tail}"),
    }
}

/// Three significant digits, without zeros at the end; larger whole numbers in full.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    let size = value.abs();
    let decimals = match size {
        0.0 => 0,
        large if large >= 99.95 => 0,
        tens if tens >= 9.995 => 1,
        ones if ones >= 0.9995 => 2,
        small => (2.0 - small.log10().floor()).min(9.0) as usize,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    match text {
        "-0" => "0".to_owned(),
        text => text.replace('-', "\u{2212}"),
    }
}

/// A whole number with thin spaces between thousands.
pub fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

/// A percentile's name: `p50`, `p99.9`.
pub fn percentile_name(percent: f64) -> String {
    format!("p{percent}")
}

/// A moment of the wall clock in UTC: `2026-11-30 00:35:49 UTC`.
pub fn utc(unix_ms: u64) -> String {
    // No later than the year 9999: the years are counted one by one.
    let seconds = unix_ms.min(253_402_300_799_999) / 1000;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut left) = (1970, day);
    let days_of = |year: u64| {
        let leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        365 + u64::from(leap)
    };
    while left >= days_of(year) {
        left -= days_of(year);
        year += 1;
    }
    let february = days_of(year) - 337;
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!(
        "{year}-{month:02}-{:02} {:02}:{:02}:{:02} UTC",
        left + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        let plain = |text: &str| text.replace(NARROW, " ");
        for (unit, value, text) in [
            (Unit::Micros, 0.0, "0 µs"),
            (Unit::Micros, 250.0, "250 µs"),
            (Unit::Micros, 999.7, "1 ms"),
            (Unit::Micros, 1234.0, "1.23 ms"),
            (Unit::Micros, 45_600_000.0, "45.6 s"),
            (Unit::Micros, 3600e6, "60 min"),
            (Unit::Seconds, 0.00002, "20 µs"),
            (Unit::Count, 999.0, "999"),
            (Unit::Count, 1500.0, "1.5 k"),
            (Unit::PerSecond, 20.0, "20/s"),
            (Unit::PerSecond, 2_345_678.0, "2.35 M/s"),
            (Unit::PerSecond, 999_900.0, "1 M/s"),
            (Unit::Bytes, 1024.0, "1 KiB"),
            (Unit::BytesPerSecond, 300.0 * 1048576.0, "300 MiB/s"),
            (Unit::Percent, 99.9, "99.9 %"),
            (Unit::Plain, -0.12345, "\u{2212}0.123"),
        ] {
            assert_eq!(plain(&unit.text(value)), text, "{unit:?} {value}");
        }
        assert_eq!(digits(f64::NAN), "?");
        assert_eq!(digits(-0.0), "0");
        assert_eq!(whole(1_234_567), "1\u{2009}234\u{2009}567");
        assert_eq!(percentile_name(99.99), "p99.99");
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_709_251_199_000), "2024-02-29 23:59:59 UTC");
        assert_eq!(utc(1_735_689_600_000), "2025-01-01 00:00:00 UTC");
        assert_eq!(utc(1_780_000_000_000), "2026-05-28 20:26:40 UTC");
    }
}
