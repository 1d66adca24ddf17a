//! The life of a broker in its cluster: registered, caught up with the metadata, unfenced, in
//! controlled shutdown (KIP-631). Pure: what the controller answers and what the broker wants go
//! in, the next heartbeat and the pause before it come out. Never sends anything itself.

use crate::types::{NodeId, Uuid};
use crate::wire::ErrorCode;
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_heartbeat_response::BrokerHeartbeatResponse;
use std::time::Duration;

/// Pause between heartbeats of a broker that only waits for the controller's next word.
const EAGER_PAUSE: Duration = Duration::from_millis(10);
/// Pause after the first heartbeat that asked for a controlled shutdown.
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(50);

/// Where a broker is in its life; numbers as Kafka's metric `BrokerState` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    NotRunning = 0,
    /// Registered or about to be; the metadata has not caught up with the registration.
    Starting = 1,
    /// Caught up; the logs are opened.
    Recovery = 2,
    /// Unfenced.
    Running = 3,
    PendingControlledShutdown = 6,
    ShuttingDown = 7,
}

/// See the module's words.
#[derive(Clone, Debug)]
pub struct Life {
    node: NodeId,
    interval: Duration,
    state: State,
    /// -1 before the registration.
    epoch: i64,
    /// The logs are open: the broker may be unfenced.
    ready: bool,
    /// Heartbeats that asked for a controlled shutdown so far.
    shutdowns_asked: u32,
}

/// What follows from a heartbeat's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the next after this pause.
    Heartbeat(Duration),
    /// The controller does not know this registration any more: register anew.
    Register,
    /// The broker may go.
    Ended,
}

impl Life {
    /// `interval` is `broker.heartbeat.interval.ms`.
    pub fn new(node: NodeId, interval: Duration) -> Life {
        Life {
            node,
            interval,
            state: State::NotRunning,
            epoch: -1,
            ready: false,
            shutdowns_asked: 0,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    pub fn is_unfenced(&self) -> bool {
        self.state == State::Running
    }

    /// The controller has taken the registration.
    pub fn registered(&mut self, epoch: i64) {
        self.epoch = epoch;
        if self.state <= State::Running {
            self.state = State::Starting;
        }
    }

    /// The logs are open; the next heartbeat asks to be unfenced.
    pub fn ready(&mut self) {
        self.ready = true;
    }

    /// The broker wants to go; its leaderships are to move first.
    pub fn shut_down(&mut self) {
        if self.state < State::PendingControlledShutdown {
            self.state = State::PendingControlledShutdown;
        }
    }

    /// The heartbeat to send now. `applied` is the offset of the metadata that the broker has
    /// applied, `offline_dirs` the log directories that have failed.
    pub fn heartbeat(&self, applied: i64, offline_dirs: Vec<Uuid>) -> BrokerHeartbeatRequest {
        let leaving = self.state >= State::PendingControlledShutdown;
        BrokerHeartbeatRequest {
            broker_id: self.node.0,
            broker_epoch: self.epoch,
            current_metadata_offset: applied,
            want_fence: !self.ready && !leaving,
            want_shut_down: leaving,
            offline_log_dirs: offline_dirs,
            ..Default::default()
        }
    }

    /// The heartbeat was answered, or was not (`Err`).
    pub fn answered(&mut self, answer: Result<&BrokerHeartbeatResponse, ErrorCode>) -> Next {
        let code = match answer {
            Ok(answer) => ErrorCode(answer.error_code),
            Err(error) => error,
        };
        let lost = [
            ErrorCode::STALE_BROKER_EPOCH,
            ErrorCode::BROKER_ID_NOT_REGISTERED,
        ];
        match answer {
            _ if lost.contains(&code) && self.state < State::PendingControlledShutdown => {
                self.state = State::Starting;
                Next::Register
            }
            Ok(answer) if code == ErrorCode::NONE => self.heard(answer),
            // Not after less than the interval: an overloaded controller gets no more of them.
            _ => Next::Heartbeat(self.interval),
        }
    }

    fn heard(&mut self, answer: &BrokerHeartbeatResponse) -> Next {
        match self.state {
            State::PendingControlledShutdown | State::ShuttingDown => {
                if answer.should_shut_down {
                    self.state = State::ShuttingDown;
                    return Next::Ended;
                }
                self.shutdowns_asked += 1;
                let first = self.shutdowns_asked == 1;
                return Next::Heartbeat(if first { SHUTDOWN_PAUSE } else { self.interval });
            }
            State::Starting | State::NotRunning if answer.is_caught_up => {
                self.state = State::Recovery;
            }
            State::Recovery if !answer.is_fenced => self.state = State::Running,
            // Fenced from outside: heartbeats came too late. The next one asks to be unfenced.
            State::Running if answer.is_fenced => self.state = State::Recovery,
            _ => {}
        }
        // While the logs are opened nothing changes quickly.
        let eager = match self.state {
            State::Starting => true,
            State::Recovery => self.ready,
            _ => false,
        };
        Next::Heartbeat(if eager { EAGER_PAUSE } else { self.interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(2000);

    fn answer(caught_up: bool, fenced: bool, stop: bool) -> BrokerHeartbeatResponse {
        BrokerHeartbeatResponse {
            is_caught_up: caught_up,
            is_fenced: fenced,
            should_shut_down: stop,
            ..Default::default()
        }
    }

    fn running() -> Life {
        let mut life = Life::new(NodeId(1), INTERVAL);
        life.registered(7);
        life.answered(Ok(&answer(true, true, false)));
        life.ready();
        life.answered(Ok(&answer(true, false, false)));
        assert_eq!(life.state(), State::Running);
        life
    }

    #[test]
    fn a_broker_is_unfenced_only_after_it_caught_up_and_opened_its_logs() {
        let mut life = Life::new(NodeId(1), INTERVAL);
        life.registered(7);
        assert!(life.heartbeat(3, Vec::new()).want_fence);
        assert_eq!(
            life.answered(Ok(&answer(false, true, false))),
            Next::Heartbeat(EAGER_PAUSE)
        );
        assert_eq!(life.state(), State::Starting);
        life.answered(Ok(&answer(true, true, false)));
        assert_eq!(life.state(), State::Recovery);
        assert!(
            life.heartbeat(7, Vec::new()).want_fence,
            "logs are not open"
        );
        life.ready();
        let asks = life.heartbeat(7, Vec::new());
        assert!(!asks.want_fence && asks.broker_epoch == 7);
        assert_eq!(
            life.answered(Ok(&answer(true, false, false))),
            Next::Heartbeat(INTERVAL)
        );
        assert!(life.is_unfenced());
    }

    #[test]
    fn an_error_waits_for_a_whole_interval() {
        let mut life = running();
        let next = life.answered(Err(ErrorCode::NOT_CONTROLLER));
        assert_eq!(next, Next::Heartbeat(INTERVAL));
        assert!(
            life.is_unfenced(),
            "no word from the controller fences nobody"
        );
    }

    #[test]
    fn a_forgotten_registration_is_made_again() {
        let mut life = running();
        let next = life.answered(Err(ErrorCode::STALE_BROKER_EPOCH));
        assert_eq!(next, Next::Register);
        life.registered(9);
        assert!(!life.is_unfenced());
        assert!(
            !life.heartbeat(9, Vec::new()).want_fence,
            "its logs are open"
        );
    }

    #[test]
    fn a_controlled_shutdown_waits_for_the_controllers_word() {
        let mut life = running();
        life.shut_down();
        assert!(life.heartbeat(7, Vec::new()).want_shut_down);
        let wait = life.answered(Ok(&answer(true, false, false)));
        assert_eq!(wait, Next::Heartbeat(SHUTDOWN_PAUSE));
        let stale = life.answered(Err(ErrorCode::STALE_BROKER_EPOCH));
        assert_eq!(
            stale,
            Next::Heartbeat(INTERVAL),
            "it does not come back to life"
        );
        assert_eq!(life.answered(Ok(&answer(true, true, true))), Next::Ended);
        assert_eq!(life.state(), State::ShuttingDown);
    }
}
