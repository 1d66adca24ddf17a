//! The line a second on standard error, and how figures are written for people. Pure.

use crate::lab::result::Moment;

/// One second of `in_all`; a negative one belongs to the warm-up, one behind to the drain.
pub(super) fn line(second: i64, in_all: i64, moment: &Moment) -> String {
    let mut text = match second {
        ..0 => format!("{:>5} s  warm-up ", second),
        _ if second < in_all => format!("{:>5} s          ", second + 1),
        _ => format!("{:>5} s  drain   ", second + 1),
    };
    for (what, records, bytes) in [
        ("produced", moment.produced_records, moment.produced_bytes),
        ("consumed", moment.consumed_records, moment.consumed_bytes),
    ] {
        if records > 0 || what == "produced" && moment.consumed_records == 0 {
            text.push_str(&format!(
                " {what} {records}/s {:.1} MB/s ",
                bytes as f64 / 1e6
            ));
        }
    }
    for (name, us) in [
        ("p50", moment.p50_us),
        ("p99", moment.p99_us),
        ("max", moment.max_us),
    ] {
        if let Some(us) = us {
            text.push_str(&format!(" {name} {}", duration(us)));
        }
    }
    if moment.errors > 0 {
        text.push_str(&format!("  ERRORS {}", moment.errors));
    }
    text
}

/// Microseconds with a unit that keeps three digits.
pub(super) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_there_is() {
        let moment = Moment {
            produced_records: 1000,
            produced_bytes: 1_500_000,
            p50_us: Some(250),
            max_us: Some(12_345),
            errors: 2,
            ..Moment::default()
        };
        assert_eq!(
            line(0, 10, &moment),
            "    1 s           produced 1000/s 1.5 MB/s  p50 250 us max 12.35 ms  ERRORS 2"
        );
        assert!(line(-1, 10, &moment).contains("warm-up"));
        assert!(line(10, 10, &moment).contains("drain"));
        assert_eq!(duration(2_500_000), "2.50 s");
    }
}
