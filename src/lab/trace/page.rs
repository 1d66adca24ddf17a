//! The story as one HTML page that needs nothing else: a timeline in SVG, a lane for each shard,
//! and every hop with its offsets and what it means. Pure.

use std::fmt::{self, Write};

use super::scenario::Facts;
use super::story::{Lane, Step, Story};
use crate::lab::page::html::{document, escaped};
use crate::lab::page::quantity::whole;

const LABELS_WIDTH: f64 = 230.0;
const LANE_HEIGHT: f64 = 48.0;
const TOP: f64 = 24.0;
/// Room below the lanes for the times, which are written aslant.
const TIMES_HEIGHT: f64 = 92.0;
/// The least distance of two hops: their marks do not touch.
const STEP_MIN: f64 = 24.0;
/// What doubling the time between two hops adds to their distance.
const STEP_DOUBLING: f64 = 6.0;
/// Shorter times are told apart by their figures only.
const UNIT_MICROS: f64 = 25.0;

/// The page. `value` is what the record held.
pub fn page(story: &Story, facts: &Facts, value: &str) -> String {
    let mut body = String::new();
    // Writing to a string does not fail.
    let _ = write_body(&mut body, story, facts, value);
    document("One record, end to end", STYLE, &body)
}

fn write_body(html: &mut String, story: &Story, facts: &Facts, value: &str) -> fmt::Result {
    let kept = &facts.topic;
    write!(
        html,
        "<h1>One record, end to end</h1>\n<p>The record <q>{}</q> to partition {} of topic {}: \
         replication factor {}, min.insync.replicas 2, acks=all. Broker {} leads, {} follow. \
         Acknowledged after {} and read after {}, measured by the monotonic clock of the host \
         that all of them share.</p>\n",
        escaped(value),
        kept.partition,
        escaped(&kept.topic),
        kept.followers.len() + 1,
        with_rack(facts, kept.leader),
        list(kept.followers.iter().map(|node| with_rack(facts, *node))),
        duration(story.acknowledged_micros),
        duration(story.read_micros),
    )?;
    timeline(html, story, facts)?;
    html.push_str(
        "<p class=\"note\">The distance of two hops grows with the logarithm of the time between \
         them; the figures are exact. An arrow is a message. Click a hop, or use the arrow keys, \
         to go from one to the next.</p>\n",
    );
    table(html, story)?;
    writeln!(html, "<script>\n{SCRIPT}</script>")
}

fn timeline(html: &mut String, story: &Story, facts: &Facts) -> fmt::Result {
    let lanes = story.lanes();
    let places = places(&story.steps);
    let y = |lane: &Lane| {
        let at = lanes.iter().position(|known| known == lane);
        TOP + LANE_HEIGHT * (at.unwrap_or_default() as f64 + 0.5)
    };
    let width = places.last().copied().unwrap_or(LABELS_WIDTH) + 60.0;
    let bottom = TOP + LANE_HEIGHT * lanes.len() as f64;
    let height = bottom + TIMES_HEIGHT;
    write!(
        html,
        "<div class=\"scroll\"><svg width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"timeline\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" class=\"tip\"/></marker></defs>\n"
    )?;
    for (at, lane) in lanes.iter().enumerate() {
        let y = y(lane);
        writeln!(
            html,
            "<line class=\"lane\" x1=\"{LABELS_WIDTH:.0}\" x2=\"{width:.0}\" y1=\"{y:.0}\" y2=\"{y:.0}\"/>\
             <text class=\"name c{}\" x=\"8\" y=\"{:.0}\">{}</text>",
            at % COLOURS,
            y + 5.0,
            escaped(&lane_name(lane, facts)),
        )?;
    }
    for (to, step) in story.steps.iter().enumerate() {
        let Some(from) = step
            .cause
            .filter(|from| story.steps[*from].lane != step.lane)
        else {
            continue;
        };
        let (x1, y1) = (places[from], y(&story.steps[from].lane));
        let (x2, y2) = (places[to], y(&step.lane));
        // The tip stands at the edge of the mark.
        let length = (x2 - x1).hypot(y2 - y1).max(1.0);
        let (dx, dy) = (10.0 * (x2 - x1) / length, 10.0 * (y2 - y1) / length);
        writeln!(
            html,
            "<line class=\"message\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" marker-end=\"url(#tip)\"/>",
            x1 + dx,
            y1 + dy,
            x2 - dx,
            y2 - dy,
        )?;
    }
    for (at, step) in story.steps.iter().enumerate() {
        let lane = lanes.iter().position(|lane| *lane == step.lane);
        let (x, y) = (places[at], y(&step.lane));
        writeln!(
            html,
            "<g class=\"hop c{}\" data-hop=\"{number}\"><title>{}</title>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\">{number}</text></g>\
             <text class=\"time\" transform=\"translate({:.1} {:.1}) rotate(55)\">{}</text>",
            lane.unwrap_or_default() % COLOURS,
            escaped(&format!("{}. {} {}", at + 1, step.title, step.offsets)),
            y + 3.5,
            x - 3.0,
            bottom + 14.0,
            duration(step.micros),
            number = at + 1,
        )?;
    }
    html.push_str("</svg></div>\n");
    Ok(())
}

/// Where each step stands, from left to right.
fn places(steps: &[Step]) -> Vec<f64> {
    let mut x = LABELS_WIDTH + 20.0;
    let mut before = None;
    let place = |step: &Step| {
        if let Some(before) = before {
            let micros = (step.micros - before) as f64;
            x += STEP_MIN + STEP_DOUBLING * (1.0 + micros / UNIT_MICROS).log2();
        }
        before = Some(step.micros);
        x
    };
    steps.iter().map(place).collect()
}

fn table(html: &mut String, story: &Story) -> fmt::Result {
    html.push_str(
        "<table>\n<thead><tr><th>#</th><th>time</th><th>where</th><th>hop</th><th>offsets</th>\
         <th>what it means</th></tr></thead>\n<tbody>\n",
    );
    for (at, step) in story.steps.iter().enumerate() {
        writeln!(
            html,
            "<tr data-hop=\"{number}\"><td>{number}</td><td class=\"at\">{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>",
            duration(step.micros),
            step.lane,
            escaped(&step.title),
            escaped(&step.offsets),
            escaped(&step.why),
            number = at + 1,
        )?;
    }
    html.push_str("</tbody>\n</table>\n");
    Ok(())
}

fn lane_name(lane: &Lane, facts: &Facts) -> String {
    match lane {
        Lane::Shard { node, .. } => match facts.racks.get(node) {
            Some(rack) => format!("{lane} ({rack})"),
            None => lane.to_string(),
        },
        _ => lane.to_string(),
    }
}

fn with_rack(facts: &Facts, node: i32) -> String {
    let rack = facts.racks.get(&node).map_or("no rack", String::as_str);
    format!("{node} ({})", escaped(rack))
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" and ")
}

/// Whole microseconds, with thin spaces between thousands.
fn duration(micros: i64) -> String {
    let sign = if micros < 0 { "\u{2212}" } else { "" };
    format!("{sign}{}\u{202f}µs", whole(micros.unsigned_abs()))
}

/// As many as the style has.
const COLOURS: usize = 8;

/// What the common style does not have.
const STYLE: &str = "\
.scroll{border:1px solid var(--line);border-radius:6px}
.scroll svg{max-width:none}
.lane{stroke:var(--line)}
.message{stroke:var(--dim);stroke-width:1.2}
.tip{fill:var(--dim)}
.hop{cursor:pointer}
.hop text{font-size:10px;font-weight:600;text-anchor:middle;fill:#fff}
.hop.on circle{stroke:var(--ink);stroke-width:3}
svg text.time{font-size:11px;fill:var(--dim)}
.c0 circle{fill:#3565c9}.c1 circle{fill:#b3501b}.c2 circle{fill:#2c7d46}.c3 circle{fill:#7a3fa8}
.c4 circle{fill:#a8324e}.c5 circle{fill:#1d7684}.c6 circle{fill:#77661c}.c7 circle{fill:#4c5a68}
table{width:100%}
td.at{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
tr.on{background:var(--mark)}
";

/// Marks one hop in the timeline and in the table.
const SCRIPT: &str = "\
var count=document.querySelectorAll('tr[data-hop]').length,current=0;
function show(n){
  if(n<1||n>count)return;
  current=n;
  document.querySelectorAll('[data-hop]').forEach(function(e){
    e.classList.toggle('on',e.dataset.hop==n);
  });
}
document.addEventListener('click',function(e){
  var hop=e.target.closest('[data-hop]');
  if(hop)show(+hop.dataset.hop);
});
document.addEventListener('keydown',function(e){
  if(e.key=='ArrowRight'||e.key=='ArrowDown'){show(current+1);e.preventDefault();}
  if(e.key=='ArrowLeft'||e.key=='ArrowUp'){show(current-1);e.preventDefault();}
});
";

#[cfg(test)]
mod tests {
    use super::super::test_kit::{facts, hops};
    use super::*;

    fn told() -> String {
        let story = Story::tell(&hops(), &facts()).unwrap();
        page(&story, &facts(), "a <b> & \"c\"")
    }

    #[test]
    fn every_hop_is_in_the_timeline_and_in_the_table() {
        let story = Story::tell(&hops(), &facts()).unwrap();
        let html = told();
        for number in 1..=story.steps.len() {
            let marks = html.matches(&format!("data-hop=\"{number}\"")).count();
            assert_eq!(marks, 2, "hop {number}");
        }
        for lane in ["producer", "consumer", "broker 2 shard 1 (rack-2)"] {
            assert!(html.contains(&format!(">{lane}</text>")), "{lane}");
        }
        assert!(html.contains("high watermark 0 -&gt; 1"));
        assert!(html.contains("Acknowledged after 600\u{202f}µs and read after 650"));
    }

    #[test]
    fn the_page_needs_nothing_else_and_its_elements_are_closed() {
        let html = told();
        for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
            let allowed = if outside == "url(" { "url(#tip)" } else { "" };
            let found = html.match_indices(outside);
            let mut strange =
                found.filter(|(at, _)| allowed.is_empty() || !html[*at..].starts_with(allowed));
            assert_eq!(strange.next(), None, "{outside}");
        }
        for tag in [
            "svg", "g", "text", "table", "tr", "td", "style", "script", "html", "p",
        ] {
            let opened = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            let closed = html.matches(&format!("</{tag}>")).count();
            assert_eq!(opened, closed, "{tag}");
        }
        assert!(html.contains("<q>a &lt;b&gt; &amp; &quot;c&quot;</q>"));
    }

    #[test]
    fn later_hops_stand_further_right_and_times_are_readable() {
        let story = Story::tell(&hops(), &facts()).unwrap();
        let places = places(&story.steps);
        assert!(places.is_sorted_by(|a, b| b - a >= STEP_MIN));
        assert_eq!(duration(1_234_567), "1\u{2009}234\u{2009}567\u{202f}µs");
        assert_eq!(duration(-999), "\u{2212}999\u{202f}µs");
    }
}
