//! The picture of the durability lab: latency against loss, a panel for each kind of event. To the
//! left is fast, below is safe; what lost nothing stands in a band of its own, for a logarithm has
//! no zero. Pure: SVG out of rows.

use super::document::RowResult;
use super::losses::Losses;
use super::meaning::time;
use crate::lab::page::html::escaped;
use std::fmt::{self, Write};

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const GAP: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
/// The band of rows that lost nothing.
const BAND: f64 = 46.0;
const RADIUS: f64 = 6.0;
/// Of acks=0, 1 and all: told apart by those who see no red or green too.
const COLOURS: [(&str, &str); 3] = [("0", "#d55e00"), ("1", "#0072b2"), ("all", "#009e73")];

/// What one row is in one panel.
struct Dot<'a> {
    row: &'a RowResult,
    x: f64,
    lost: f64,
    text: String,
}

/// The latency that a row is drawn at: p99, or the median where there are too few samples.
fn latency(row: &RowResult) -> Option<f64> {
    let of = row.percentiles.as_ref()?;
    of.p99_us.or(of.p50_us).map(|us| us.max(1) as f64)
}

/// Powers of ten around some values.
fn decades(values: impl Iterator<Item = f64>, fallback: (f64, f64)) -> (f64, f64) {
    let logs = values.map(f64::log10);
    let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), log| {
        (low.min(log.floor()), high.max(log.ceil()))
    });
    match low <= high {
        true if low == high => (low, low + 1.0),
        true => (low, high),
        false => fallback,
    }
}

/// All panels in one figure.
pub fn picture(rows: &[RowResult]) -> String {
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = draw(rows, &mut svg);
    svg
}

fn draw(rows: &[RowResult], svg: &mut String) -> fmt::Result {
    type Of = fn(&RowResult) -> &Losses;
    let panels: [(&str, Of); 3] = [
        ("kill -9 of processes", |row| &row.losses.process_kill),
        ("power loss of one host", |row| {
            &row.losses.one_host_power_loss
        }),
        ("power loss of all hosts", |row| {
            &row.losses.all_hosts_power_loss
        }),
    ];
    let mean = |losses: &Losses| losses.lost_records_per_event.filter(|mean| *mean > 0.0);
    let all = panels
        .iter()
        .flat_map(|(_, of)| rows.iter().filter_map(move |row| mean(of(row))));
    let y = decades(all, (0.0, 2.0));
    let x = decades(rows.iter().filter_map(latency), (2.0, 4.0));
    let width = (WIDTH - LEFT - 3.0 * GAP) / 3.0;
    writeln!(
        svg,
        "<svg class=\"lab\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"latency against loss\">"
    )?;
    let floor = HEIGHT - BOTTOM - BAND;
    writeln!(
        svg,
        "<text x=\"14\" y=\"{:.0}\" transform=\"rotate(-90 14 {0:.0})\" text-anchor=\"middle\">records lost an event</text>",
        (TOP + floor) / 2.0
    )?;
    for decade in y.0 as i32..=y.1 as i32 {
        let at = place(f64::from(decade), y, floor, TOP);
        writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            number(decade)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">none</text>",
        LEFT - 6.0,
        floor + BAND / 2.0 + 4.0
    )?;
    for (number_of, (title, of)) in panels.iter().enumerate() {
        let left = LEFT + number_of as f64 * (width + GAP);
        let dots = rows.iter().filter_map(|row| {
            let losses = of(row);
            let lost = losses.lost_records_per_event?;
            let latency = latency(row)?;
            Some(Dot {
                row,
                x: place(latency.log10(), x, left + 10.0, left + width - 10.0),
                lost,
                text: format!(
                    "{}: {}, {title}: lost {}",
                    row.title,
                    time(latency as u64),
                    losses.short()
                ),
            })
        });
        let dots: Vec<Dot> = dots.collect();
        frame(svg, title, (left, width), x, y)?;
        if dots.is_empty() {
            writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">nothing measured</text>",
                left + width / 2.0,
                (TOP + floor) / 2.0
            )?;
        }
        let mut kept = 0;
        for dot in &dots {
            let at = match dot.lost > 0.0 {
                true => place(dot.lost.log10(), y, floor - 8.0, TOP + 8.0),
                false => {
                    kept += 1;
                    // So that they do not hide each other.
                    floor + BAND / 2.0 + f64::from(kept % 5 - 2) * 7.0
                }
            };
            mark(svg, dot, at)?;
        }
    }
    writeln!(svg, "</svg>")?;
    svg.push_str(&legend());
    Ok(())
}

fn place(value: f64, range: (f64, f64), from: f64, to: f64) -> f64 {
    from + (value - range.0) / (range.1 - range.0) * (to - from)
}

fn number(decade: i32) -> String {
    match decade {
        0..=5 => format!("{}", 10_u32.pow(decade.unsigned_abs())),
        -4..0 => format!("0.{:0>1$}", 1, decade.unsigned_abs() as usize),
        _ => format!("1e{decade}"),
    }
}

fn frame(
    svg: &mut String,
    title: &str,
    (left, width): (f64, f64),
    x: (f64, f64),
    y: (f64, f64),
) -> fmt::Result {
    let floor = HEIGHT - BOTTOM - BAND;
    let right = left + width;
    writeln!(
        svg,
        "<text class=\"title\" x=\"{left:.1}\" y=\"20\">{}</text>\n\
         <rect class=\"band\" x=\"{left:.1}\" y=\"{floor:.1}\" width=\"{width:.1}\" height=\"{BAND:.1}\"/>",
        escaped(title)
    )?;
    for decade in y.0 as i32..=y.1 as i32 {
        let at = place(f64::from(decade), y, floor, TOP);
        writeln!(
            svg,
            "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        )?;
    }
    let bottom = HEIGHT - BOTTOM;
    for decade in x.0 as i32..=x.1 as i32 {
        let at = place(f64::from(decade), x, left + 10.0, right - 10.0);
        let us = 10_u64.pow(decade.unsigned_abs());
        writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            time(us)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">produce latency, p99</text>",
        left + width / 2.0,
        bottom + 34.0
    )
}

fn mark(svg: &mut String, dot: &Dot<'_>, y: f64) -> fmt::Result {
    let configuration = &dot.row.configuration;
    let acks = configuration["acks"].as_str().unwrap_or_default();
    let colour = COLOURS.iter().find(|(name, _)| *name == acks);
    let colour = colour.map_or("#888", |(_, colour)| colour);
    let fill = match configuration["flush_messages"].is_null() {
        true => "none",
        false => colour,
    };
    let dashes = match configuration["segment_io"].as_str() {
        Some("direct") => " stroke-dasharray=\"2.5 2\"",
        _ => "",
    };
    let style = format!(
        "fill=\"{fill}\" fill-opacity=\"0.55\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}"
    );
    let title = format!("<title>{}</title>", escaped(&dot.text));
    let x = dot.x;
    match configuration["brokers"].as_u64() {
        Some(1) => writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\" {style}>{title}</circle>"
        )?,
        _ => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{}\" height=\"{}\" {style}>{title}</rect>",
            x - RADIUS,
            y - RADIUS,
            2.0 * RADIUS,
            2.0 * RADIUS
        )?,
    }
    if configuration["system"] == "kafka" {
        writeln!(
            svg,
            "<text class=\"k\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">K</text>",
            y + 3.5
        )?;
    }
    Ok(())
}

fn legend() -> String {
    let colours: Vec<String> = COLOURS
        .iter()
        .map(|(acks, colour)| format!("<span style=\"color:{colour}\">\u{25cf}</span> acks={acks}"))
        .collect();
    format!(
        "<p class=\"legend\">{}; circle: one broker, square: three; filled: flush.messages=1, hollow: \
         flushed by the operating system; dashed: direct I/O, solid: buffered; K: Apache Kafka. \
         Left is fast (the median where there were too few samples for a p99), the shaded band lost \
         nothing. Point at a mark for its figures.</p>\n",
        colours.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::document::RowResult;
    use super::super::document::tests::{loss_set, measured};
    use super::super::matrix::highwater_rows;
    use super::*;

    #[test]
    fn every_measured_row_is_a_mark_in_every_panel() {
        let rows: Vec<RowResult> = highwater_rows()
            .iter()
            .map(|row| RowResult::new(row, Ok(&measured()), loss_set(0, 5, 1000)))
            .collect();
        let svg = picture(&rows);
        assert_eq!(svg.matches("<circle").count(), 12 * 3);
        assert_eq!(svg.matches("<title>").count(), 24 * 3);
        assert!(
            svg.contains(">1000</text>") && svg.contains(">1</text>"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn rows_without_figures_are_no_marks_and_break_nothing() {
        let row = highwater_rows()[0];
        let rows = [RowResult::new(&row, Err(&String::new()), loss_set(0, 0, 0))];
        let svg = picture(&rows);
        assert!(!svg.contains("<circle") && svg.contains("nothing measured"));
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn decades_are_written_out_where_they_are_short() {
        assert_eq!(
            [number(-2), number(-1), number(0), number(3)],
            ["0.01", "0.1", "1", "1000"]
        );
        assert_eq!(number(-9), "1e-9");
    }

    #[test]
    fn one_value_has_a_decade_around_it() {
        assert_eq!(decades([100.0].into_iter(), (0.0, 1.0)), (2.0, 3.0));
        assert_eq!(decades([0.5, 30.0].into_iter(), (0.0, 1.0)), (-1.0, 2.0));
        assert_eq!(decades(std::iter::empty(), (0.0, 1.0)), (0.0, 1.0));
    }
}
