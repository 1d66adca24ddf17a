//! Pages that need nothing but themselves: HTML with pictures in SVG, no script library and no
//! network. Pure: text out of figures. Everything that comes from outside is escaped.
//!
//! | file | owns |
//! |---|---|
//! | `html` | the frame of a page, its style, tables, escaping |
//! | `quantity` | figures with their units, as people read them |
//! | `scale` | where a value stands on an axis, and where its ticks are |
//! | `chart` | a picture: axes, lines, marks, labels |
//! | `labels` | where labels stand so that they do not cover each other |
//! | `bench` | the page of a [`BenchResult`] |

mod bench;
mod bench_charts;
pub mod chart;
pub mod html;
mod labels;
pub mod quantity;
pub mod scale;

use super::result::BenchResult;

/// The whole report of one invocation of the load tool.
pub fn bench_page(result: &BenchResult) -> String {
    bench::page(result)
}
