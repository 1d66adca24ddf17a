//! Where labels stand so that they do not cover each other. Pure.

/// Height of a line of text.
pub(super) const LINE: f64 = 15.0;

/// A guess of how wide `text` is in the font of the pictures: 12 pixels, proportional.
pub(super) fn width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

/// Moves labels that want to stand at heights `wanted` apart by at least [`LINE`], keeps their
/// order and stays between `low` and `high` as long as there is room.
pub(super) fn spread(wanted: &[f64], low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut floor = low;
    for at in &order {
        places[*at] = wanted[*at].max(floor);
        floor = places[*at] + LINE;
    }
    let mut ceiling = high;
    for at in order.iter().rev() {
        places[*at] = places[*at].min(ceiling);
        ceiling = places[*at] - LINE;
    }
    places
}

/// A rectangle in the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    pub(super) fn overlaps(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn is_within(&self, other: &Area) -> bool {
        self.left >= other.left
            && self.right <= other.right
            && self.top >= other.top
            && self.bottom <= other.bottom
    }
}

/// A mark of radius `radius` around a point, and the text that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) radius: f64,
    pub(super) text: &'a str,
}

/// The first column from `mark`'s own to the right in which it covers none of `others`: marks at
/// one place stand side by side.
pub(super) fn free_column(mark: &Marked<'_>, others: &[Marked<'_>], right: f64) -> f64 {
    let mut x = mark.x;
    let covered = |x: f64| {
        let close = |other: &&Marked<'_>| {
            (other.y - mark.y).abs() < mark.radius && (other.x - x).abs() < 1.6 * mark.radius
        };
        others.iter().any(|other| close(&other))
    };
    while covered(x) && x + 3.0 * mark.radius < right {
        x += mark.radius;
    }
    x
}

/// For each of `named` the area of its text beside it, or nothing if every place near it is taken
/// by one of all `marks` or by another text.
pub(super) fn beside(
    named: &[Marked<'_>],
    marks: &[Marked<'_>],
    frame: &Area,
) -> Vec<Option<Area>> {
    let mut taken: Vec<Area> = marks.iter().map(around).collect();
    let mut places = Vec::with_capacity(named.len());
    for mark in named {
        let place = candidates(mark)
            .find(|area| area.is_within(frame) && !taken.iter().any(|other| other.overlaps(area)));
        let place = place.filter(|_| !mark.text.is_empty());
        taken.extend(place);
        places.push(place);
    }
    places
}

fn around(mark: &Marked<'_>) -> Area {
    Area {
        left: mark.x - mark.radius,
        top: mark.y - mark.radius,
        right: mark.x + mark.radius,
        bottom: mark.y + mark.radius,
    }
}

/// Right, left, above, below; then the same further away.
fn candidates(mark: &Marked<'_>) -> impl Iterator<Item = Area> {
    let (x, y, wide) = (mark.x, mark.y, width(mark.text));
    let near = mark.radius + 4.0;
    let at = move |left: f64, top: f64| Area {
        left,
        top,
        right: left + wide,
        bottom: top + LINE,
    };
    (0..6).flat_map(move |ring| {
        let further = f64::from(ring) * LINE;
        [
            at(x + near, y - LINE / 2.0 - further),
            at(x + near, y - LINE / 2.0 + further),
            at(x - near - wide, y - LINE / 2.0 - further),
            at(x - near - wide, y - LINE / 2.0 + further),
            at(x - wide / 2.0, y - near - LINE - further),
            at(x - wide / 2.0, y + near + further),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME: Area = Area {
        left: 0.0,
        top: 0.0,
        right: 800.0,
        bottom: 400.0,
    };

    proptest! {
        #[test]
        fn spread_labels_do_not_touch_and_stay_inside(
            wanted in prop::collection::vec(0f64..300.0, 0..18),
        ) {
            let places = spread(&wanted, 0.0, 300.0);
            let mut sorted = places.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|two| two[1] - two[0] >= LINE - 1e-6));
            prop_assert!(sorted.iter().all(|y| (-1e-6..=300.0 + 1e-6).contains(y)));
            for (a, at) in wanted.iter().enumerate() {
                for (b, other) in wanted.iter().enumerate() {
                    prop_assert!(at >= other || places[a] <= places[b]);
                }
            }
        }

        #[test]
        fn no_text_covers_a_mark_or_another_text(
            points in prop::collection::vec((0f64..800.0, 0f64..400.0), 0..30),
        ) {
            let mark = |(x, y): &(f64, f64)| Marked { x: *x, y: *y, radius: 5.0, text: "acks=all" };
            let marks: Vec<Marked<'_>> = points.iter().map(mark).collect();
            let places: Vec<Area> = beside(&marks, &marks, &FRAME).into_iter().flatten().collect();
            for (at, place) in places.iter().enumerate() {
                prop_assert!(place.is_within(&FRAME));
                prop_assert!(!places[at + 1..].iter().any(|other| other.overlaps(place)));
                prop_assert!(!marks.iter().any(|mark| around(mark).overlaps(place)));
            }
        }
    }

    #[test]
    fn marks_at_one_place_stand_side_by_side() {
        let mark = Marked {
            x: 100.0,
            y: 50.0,
            radius: 5.0,
            text: "",
        };
        let mut drawn: Vec<Marked<'_>> = Vec::new();
        for _ in 0..3 {
            let x = free_column(&mark, &drawn, 800.0);
            drawn.push(Marked { x, ..mark });
        }
        let columns: Vec<f64> = drawn.iter().map(|mark| mark.x).collect();
        assert_eq!(columns, [100.0, 110.0, 120.0]);
        // At the right edge they cover each other rather than leave the picture.
        assert_eq!(
            free_column(&Marked { x: 110.0, ..mark }, &drawn, 120.0),
            110.0
        );
    }

    #[test]
    fn labels_that_have_room_stand_where_they_want() {
        assert_eq!(spread(&[50.0, 10.0], 0.0, 100.0), [50.0, 10.0]);
        let mark = Marked {
            x: 100.0,
            y: 100.0,
            radius: 5.0,
            text: "a",
        };
        let places = beside(&[mark], &[mark], &FRAME);
        assert_eq!(places[0].map(|area| area.left), Some(109.0));
    }
}
