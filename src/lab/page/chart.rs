//! A picture in SVG: two axes, lines or marks, and the name of each series beside it rather than
//! in a legend. Series differ by colour and by dashes or shape. Pure.

use std::fmt::{self, Write};

use super::html::escaped;
use super::labels::{self, Area, Marked};
use super::quantity::Unit;
use super::scale::{Axis, Scale};

/// Colours, dashes and shapes there are; further series begin again. More than eight lines in a
/// picture tell nobody anything.
pub const SERIES_MAX: usize = 8;

/// Points of a line that have a title, so that hovering tells their figures: a title at each of
/// thousands of points would be most of the page.
const TITLED_POINTS_MAX: usize = 100;

const WIDTH: f64 = 880.0;
const LEFT: f64 = 72.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;
const MARK_RADIUS: f64 = 5.5;
/// Between the axes and the outermost values where there are marks: a mark is not cut by an axis.
const MARK_ROOM: f64 = 12.0;

/// How an axis is labelled and spread.
#[derive(Clone, Copy, Debug)]
pub struct AxisPlan<'a> {
    pub label: &'a str,
    pub unit: Unit,
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    Line,
    /// A line that is less than certain, or only for comparison.
    Faint,
    /// A mark at each point, with the point's label.
    Marks,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    /// Absent: there was nothing to measure here, and a line is interrupted.
    pub y: Option<f64>,
    /// Text beside a mark.
    pub label: String,
}

impl Point {
    pub fn at(x: f64, y: f64) -> Point {
        Point {
            x,
            y: Some(y),
            label: String::new(),
        }
    }

    pub fn labelled(x: f64, y: f64, label: &str) -> Point {
        Point {
            label: label.to_owned(),
            ..Point::at(x, y)
        }
    }

    pub fn gap(x: f64) -> Point {
        Point {
            x,
            y: None,
            label: String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub look: Look,
    pub points: Vec<Point>,
    /// Which of the colours; series that belong together may share one.
    pub colour: usize,
}

/// A horizontal line that says what would be possible, such as a floor.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    pub name: String,
    pub value: f64,
}

#[derive(Clone, Debug)]
pub struct Chart<'a> {
    pub title: &'a str,
    pub x: AxisPlan<'a>,
    pub y: AxisPlan<'a>,
    pub series: Vec<Series>,
    pub levels: Vec<Level>,
    pub height: f64,
}

impl Chart<'_> {
    /// The picture as a `figure` element, with its title above it.
    pub fn figure(&self) -> String {
        let mut html = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut html);
        html
    }

    fn write(&self, html: &mut String) -> fmt::Result {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let heights = points().filter_map(|point| point.y);
        let heights = heights.chain(self.levels.iter().map(|level| level.value));
        let x = Axis::around(
            self.x.label,
            self.x.unit,
            self.x.scale,
            points().map(|point| point.x),
        );
        let y = Axis::around(self.y.label, self.y.unit, self.y.scale, heights);
        let view = View {
            x,
            y,
            frame: Area {
                left: LEFT,
                top: TOP,
                right: WIDTH - self.right_margin(),
                bottom: self.height - BOTTOM,
            },
            room: match self.series.iter().any(|one| one.look == Look::Marks) {
                true => MARK_ROOM,
                false => 0.0,
            },
        };
        let title = escaped(self.title);
        write!(
            html,
            "<figure><h3>{title}</h3>\n<svg width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             <title>{title}</title>\n<desc>{}</desc>\n",
            escaped(&self.described(&view)),
            height = self.height,
        )?;
        view.axes(html)?;
        for level in &self.levels {
            view.level(html, level)?;
        }
        for (at, series) in self.series.iter().enumerate() {
            if series.look != Look::Marks {
                view.line(html, series, at)?;
            }
        }
        self.marks(html, &view)?;
        self.names(html, &view)?;
        html.push_str("</svg></figure>\n");
        Ok(())
    }

    /// Room for the names of the series.
    fn right_margin(&self) -> f64 {
        let names = self.series.iter().map(|series| series.name.as_str());
        let names = names.chain(self.levels.iter().map(|level| level.name.as_str()));
        let widest = names.map(labels::width).fold(0.0, f64::max);
        (widest + 34.0).clamp(24.0, WIDTH / 3.0)
    }

    fn described(&self, view: &View) -> String {
        let names: Vec<&str> = self.series.iter().map(|series| &*series.name).collect();
        format!(
            "Across: {}. Up: {}. Series: {}. The figures are in the table beside it.",
            view.x.described(),
            view.y.described(),
            names.join(", ")
        )
    }

    /// The name of each line at its end, of each kind of marks in a column with its shape.
    fn names(&self, html: &mut String, view: &View) -> fmt::Result {
        let mut wanted = Vec::new();
        let mut named = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            let last = series.points.iter().rev().find_map(|point| point.y);
            let Some(last) = last.filter(|_| !series.name.is_empty()) else {
                continue;
            };
            wanted.push(match series.look {
                Look::Marks => view.frame.top + labels::LINE * at as f64,
                Look::Line | Look::Faint => view.down(last),
            });
            named.push(at);
        }
        for level in &self.levels {
            wanted.push(view.down(level.value));
        }
        let places = labels::spread(&wanted, view.frame.top, view.frame.bottom);
        let left = view.frame.right + 12.0;
        for (at, place) in named.iter().zip(&places) {
            let series = &self.series[*at];
            if series.look == Look::Marks {
                shape(html, *at, series.colour, left + 2.0, *place, "")?;
            }
            let indent = if series.look == Look::Marks {
                14.0
            } else {
                0.0
            };
            writeln!(
                html,
                "<text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:var(--c{});font-weight:600\">{}</text>",
                left + indent,
                place + 4.0,
                series.colour % SERIES_MAX,
                escaped(&series.name)
            )?;
        }
        for (level, place) in self.levels.iter().zip(&places[named.len()..]) {
            writeln!(
                html,
                "<text x=\"{left:.1}\" y=\"{:.1}\" style=\"fill:var(--dim)\">{}</text>",
                place + 4.0,
                escaped(&level.name)
            )?;
        }
        Ok(())
    }

    /// Marks, those at one place side by side; and the text of each beside it, once for those that
    /// touch and say the same.
    fn marks(&self, html: &mut String, view: &View) -> fmt::Result {
        let mut drawn: Vec<Marked<'_>> = Vec::new();
        let mut named: Vec<Marked<'_>> = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            if series.look != Look::Marks {
                continue;
            }
            for point in &series.points {
                let Some(value) = point.y else { continue };
                let mut mark = Marked {
                    x: view.across(point.x),
                    y: view.down(value),
                    radius: MARK_RADIUS,
                    text: &point.label,
                };
                mark.x = labels::free_column(&mark, &drawn, view.frame.right);
                let told = view.told(series, point.x, value);
                let told = match &*point.label {
                    "" => told,
                    label => format!("{label}; {told}"),
                };
                shape(html, at, series.colour, mark.x, mark.y, &told)?;
                let touching = named.iter_mut().find(|other| {
                    other.text == mark.text
                        && (other.y - mark.y).abs() < 1.0
                        && (other.x - mark.x).abs() <= other.radius + 3.0 * MARK_RADIUS
                });
                match touching {
                    // The text stands beside all of them.
                    Some(other) => {
                        let left = (other.x - other.radius).min(mark.x - MARK_RADIUS);
                        let right = (other.x + other.radius).max(mark.x + MARK_RADIUS);
                        (other.x, other.radius) = ((left + right) / 2.0, (right - left) / 2.0);
                    }
                    None => named.push(mark),
                }
                drawn.push(mark);
            }
        }
        for (mark, place) in named
            .iter()
            .zip(labels::beside(&named, &drawn, &view.frame))
        {
            let Some(area) = place else { continue };
            // Text that stands away from its mark is tied to it.
            let middle = (area.top + area.bottom) / 2.0;
            if (middle - mark.y).abs() > labels::LINE {
                let near = mark.x.clamp(area.left, area.right);
                let edge = if middle < mark.y {
                    area.bottom
                } else {
                    area.top
                };
                writeln!(
                    html,
                    "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{near:.1}\" y2=\"{edge:.1}\" style=\"stroke:var(--dim)\"/>",
                    mark.x, mark.y
                )?;
            }
            writeln!(
                html,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                area.left,
                middle + 4.0,
                escaped(mark.text)
            )?;
        }
        Ok(())
    }
}

/// The axes and where they are drawn.
struct View {
    x: Axis,
    y: Axis,
    frame: Area,
    room: f64,
}

impl View {
    fn across(&self, x: f64) -> f64 {
        self.column(self.x.place(x))
    }

    fn down(&self, y: f64) -> f64 {
        self.row(self.y.place(y))
    }

    fn column(&self, place: f64) -> f64 {
        let wide = self.frame.right - self.frame.left - 2.0 * self.room;
        self.frame.left + self.room + place * wide
    }

    fn row(&self, place: f64) -> f64 {
        let high = self.frame.bottom - self.frame.top - 2.0 * self.room;
        self.frame.bottom - self.room - place * high
    }

    fn axes(&self, html: &mut String) -> fmt::Result {
        let Area {
            left,
            top,
            right,
            bottom,
        } = self.frame;
        for tick in self.y.ticks() {
            let y = self.row(tick.place);
            writeln!(
                html,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\" style=\"stroke:var(--grid)\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.0,
                escaped(&tick.text)
            )?;
        }
        let mut free_from = f64::NEG_INFINITY;
        for tick in self.x.ticks() {
            let x = self.column(tick.place);
            // Text that would touch its neighbour is left out; its line stays.
            let half = labels::width(&tick.text) / 2.0;
            let text = if x - half >= free_from {
                &*tick.text
            } else {
                ""
            };
            if !text.is_empty() {
                free_from = x + half + 6.0;
            }
            writeln!(
                html,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" style=\"stroke:var(--grid)\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                escaped(text)
            )?;
        }
        writeln!(
            html,
            "<path d=\"M{left} {top}V{bottom:.1}H{right:.1}\" style=\"fill:none;stroke:var(--dim)\"/>\n\
             <text x=\"8\" y=\"14\" style=\"fill:var(--dim)\">{}</text>\n\
             <text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\" style=\"fill:var(--dim)\">{}</text>",
            escaped(&self.y.label),
            bottom + 38.0,
            escaped(&self.x.label),
        )
    }

    fn level(&self, html: &mut String, level: &Level) -> fmt::Result {
        let y = self.down(level.value);
        writeln!(
            html,
            "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" \
             style=\"stroke:var(--dim);stroke-dasharray:1 4;stroke-width:1.5\"><title>{}</title></line>",
            self.frame.left,
            self.frame.right,
            escaped(&format!(
                "{}: {}",
                level.name,
                self.y.unit.text(level.value)
            ))
        )
    }

    fn line(&self, html: &mut String, series: &Series, at: usize) -> fmt::Result {
        let mut path = String::new();
        let mut drawn = false;
        for (place, point) in series.points.iter().enumerate() {
            let Some(y) = point.y else {
                drawn = false;
                continue;
            };
            let (x, y) = (self.across(point.x), self.down(y));
            write!(path, "{}{x:.1} {y:.1}", if drawn { 'L' } else { 'M' })?;
            let next = series.points.get(place + 1).and_then(|next| next.y);
            if !drawn && next.is_none() {
                // A point between two gaps would not be seen.
                path.push_str("h.1");
            }
            drawn = true;
        }
        let (width, dashes) = match series.look {
            Look::Faint => ("1.2", "2 4"),
            _ => ("2.2", DASHES[at % DASHES.len()]),
        };
        writeln!(
            html,
            "<path d=\"{path}\" style=\"fill:none;stroke:var(--c{});stroke-width:{width};\
             stroke-dasharray:{dashes};stroke-linejoin:round;stroke-linecap:round\"/>",
            series.colour % SERIES_MAX,
        )?;
        let stride = series.points.len().div_ceil(TITLED_POINTS_MAX).max(1);
        for point in series.points.iter().step_by(stride) {
            let Some(y) = point.y else { continue };
            writeln!(
                html,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" style=\"fill:transparent\"><title>{}</title></circle>",
                self.across(point.x),
                self.down(y),
                escaped(&self.told(series, point.x, y))
            )?;
        }
        Ok(())
    }

    fn told(&self, series: &Series, x: f64, y: f64) -> String {
        let x = match self.x.unit {
            // 99.999 % is not 100 %.
            Unit::Percent => format!("{x:.4}\u{202f}%"),
            unit => unit.text(x),
        };
        format!("{}: {} at {x}", series.name, self.y.unit.text(y))
    }
}

/// So that lines can be told apart without colours.
const DASHES: [&str; 5] = ["none", "7 5", "2 5", "10 4 2 4", "14 4"];

/// A circle, square, triangle or diamond; from the fifth series on hollow ones.
fn shape(html: &mut String, at: usize, colour: usize, x: f64, y: f64, title: &str) -> fmt::Result {
    let r = MARK_RADIUS;
    let path = match at % 4 {
        0 => format!(
            "M{:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
            x - r,
            d = 2.0 * r
        ),
        1 => format!("M{:.1} {:.1}h{d}v{d}h-{d}z", x - 4.8, y - 4.8, d = 9.6),
        2 => format!("M{x:.1} {:.1}l{r} 10h-{d}z", y - 6.0, d = 2.0 * r),
        _ => format!("M{x:.1} {:.1}l6.4 6.4l-6.4 6.4l-6.4 -6.4z", y - 6.4),
    };
    let colour = colour % SERIES_MAX;
    let look = match at / 4 % 2 {
        0 => format!("fill:var(--c{colour});stroke:var(--paper)"),
        _ => format!("fill:var(--paper);stroke:var(--c{colour});stroke-width:2"),
    };
    let title = match title {
        "" => String::new(),
        title => format!("<title>{}</title>", escaped(title)),
    };
    writeln!(html, "<path d=\"{path}\" style=\"{look}\">{title}</path>")
}

#[cfg(test)]
mod tests {
    use super::super::html::checks::assert_well_formed;
    use super::*;
    use proptest::prelude::*;

    fn chart(series: Vec<Series>, scale: Scale) -> Chart<'static> {
        Chart {
            title: "a <picture>",
            x: AxisPlan {
                label: "time, s",
                unit: Unit::Plain,
                scale: Scale::Linear,
            },
            y: AxisPlan {
                label: "latency & more",
                unit: Unit::Micros,
                scale,
            },
            series,
            levels: vec![Level {
                name: "floor".to_owned(),
                value: 40.0,
            }],
            height: 320.0,
        }
    }

    fn series(look: Look, points: Vec<Point>) -> Series {
        Series {
            name: "p<50>".to_owned(),
            look,
            points,
            colour: 0,
        }
    }

    /// The numbers that stand in attributes of places.
    fn places(html: &str, attribute: &str) -> Vec<f64> {
        let name = format!(" {attribute}=\"");
        let found = html.match_indices(&name);
        found
            .filter_map(|(at, _)| html[at + name.len()..].split('"').next()?.parse().ok())
            .collect()
    }

    proptest! {
        #[test]
        fn a_picture_of_anything_is_well_formed_and_inside_its_frame(
            points in prop::collection::vec((0f64..1e5, prop::option::of(0f64..1e9)), 0..40),
            look in prop::sample::select(vec![Look::Line, Look::Faint, Look::Marks]),
            scale in prop::sample::select(vec![Scale::Linear, Scale::Log, Scale::LogAndZero]),
        ) {
            let point = |(x, y): (f64, Option<f64>)| Point { x, y, label: "a<b".to_owned() };
            let points = points.into_iter().map(point).collect();
            let html = chart(vec![series(look, points)], scale).figure();
            assert_well_formed(&html);
            for attribute in ["x", "x1", "x2", "cx"] {
                let outside = places(&html, attribute).into_iter().find(|x| !(0.0..=WIDTH).contains(x));
                prop_assert_eq!(outside, None);
            }
            for attribute in ["y", "y1", "y2", "cy"] {
                let outside = places(&html, attribute).into_iter().find(|y| !(-5.0..=320.0).contains(y));
                prop_assert_eq!(outside, None);
            }
        }
    }

    #[test]
    fn a_gap_interrupts_the_line_and_a_lone_point_is_seen() {
        let points = vec![
            Point::at(0.0, 10.0),
            Point::at(1.0, 20.0),
            Point::gap(2.0),
            Point::at(3.0, 20.0),
            Point::gap(4.0),
        ];
        let html = chart(vec![series(Look::Line, points)], Scale::Log).figure();
        let path = html
            .split("<path d=\"")
            .nth(2)
            .and_then(|rest| rest.split('"').next());
        let path = path.unwrap();
        assert_eq!(
            (path.matches('M').count(), path.matches('L').count()),
            (2, 1)
        );
        assert!(path.ends_with("h.1"), "{path}");
        assert!(html.contains("<title>p&lt;50&gt;: 20\u{202f}µs at 3</title>"));
        assert!(html.contains("<title>floor: 40\u{202f}µs</title>"));
    }

    #[test]
    fn series_are_named_and_the_picture_is_described() {
        let points = vec![Point::labelled(1.0, 1000.0, "acks=all & flush")];
        let html = chart(vec![series(Look::Marks, points)], Scale::Log).figure();
        assert!(html.contains(">acks=all &amp; flush</text>"));
        assert!(html.contains("aria-label=\"a &lt;picture&gt;\""));
        assert!(html.contains("Series: p&lt;50&gt;."));
        assert!(html.contains(">p&lt;50&gt;</text>"));
    }
}
