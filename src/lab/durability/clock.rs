//! How the time of a run is dealt out among its rows and its power losses: less to each where the
//! machine is so busy that all the rest takes longer than it should. Pure; is told what time it is.

use std::time::Duration;

/// Of a deadline, this part is for measuring rows; kills and power losses have the rest.
const ROWS_SHARE: f64 = 0.75;
/// Less shows nothing but the start of a load.
const TIME_A_ROW_MIN: Duration = Duration::from_millis(500);

/// See the module's words.
pub struct Clock {
    /// When the whole run should have ended, from its beginning.
    deadline: Option<Duration>,
    time_a_row: Duration,
    /// Rows that have not been measured.
    left: u32,
}

impl Clock {
    pub fn new(deadline: Option<Duration>, time_a_row: Duration, rows: usize) -> Clock {
        Clock {
            deadline,
            time_a_row,
            left: rows as u32,
        }
    }

    /// How long the next row's load is sent.
    pub fn row(&mut self, elapsed: Duration) -> Duration {
        let left = self.left.max(1);
        self.leave_out(1);
        let Some(deadline) = self.deadline else {
            return self.time_a_row;
        };
        let share = deadline.mul_f64(ROWS_SHARE).saturating_sub(elapsed) / left;
        // What a row takes beside its load is about as long again.
        (share / 2).clamp(TIME_A_ROW_MIN, self.time_a_row.max(TIME_A_ROW_MIN))
    }

    /// Rows that are not measured leave their time to the others.
    pub fn leave_out(&mut self, rows: usize) {
        self.left = self.left.saturating_sub(rows as u32);
    }

    /// What is left for power losses, of what they should have at most.
    pub fn power(&self, elapsed: Duration, at_most: Option<Duration>) -> Option<Duration> {
        let left = self.deadline.map(|of| of.saturating_sub(elapsed));
        [at_most, left].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn without_a_deadline_every_row_has_its_time_and_power_losses_all_of_theirs() {
        let mut clock = Clock::new(None, SECOND * 30, 2);
        assert_eq!(clock.row(SECOND * 10_000), SECOND * 30);
        assert_eq!(clock.power(SECOND * 10_000, None), None);
        assert_eq!(clock.power(SECOND, Some(SECOND * 5)), Some(SECOND * 5));
    }

    #[test]
    fn a_late_run_sends_less_to_each_row_and_rows_left_out_give_their_time_away() {
        let deadline = Some(SECOND * 80);
        let mut clock = Clock::new(deadline, SECOND * 10, 4);
        assert_eq!(clock.row(SECOND * 20), SECOND * 5);
        clock.leave_out(2);
        assert_eq!(clock.row(SECOND * 50), SECOND * 5);
        assert_eq!(clock.row(SECOND * 70), TIME_A_ROW_MIN);
        assert_eq!(clock.power(SECOND * 70, None), Some(SECOND * 10));
        assert_eq!(clock.power(SECOND * 90, None), Some(Duration::ZERO));
    }
}
