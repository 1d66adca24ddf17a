//! Who may connect: counts open connections of the whole broker and of each peer address.
//! Shared by all shards (atomics and a mutex touched only at connect and close, never on the
//! path of a record). Never closes a connection itself.

use ahash::AHashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The limits of Kafka's `max.connections`, `max.connections.per.ip` and
/// `max.connections.per.ip.overrides`.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_ip: usize,
    pub overrides: Vec<(IpAddr, usize)>,
}

#[derive(Default)]
struct Counts {
    total: usize,
    by_ip: AHashMap<IpAddr, usize>,
}

/// The counts of one broker.
pub struct Admission {
    limits: ConnectionLimits,
    counts: Mutex<Counts>,
}

/// Why a connection was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("max.connections ({0}) are open")]
    Total(usize),
    #[error("max.connections.per.ip ({0}) are open from this address")]
    PerIp(usize),
}

/// One admitted connection; dropping it gives the place back.
pub struct Admitted {
    admission: Arc<Admission>,
    ip: IpAddr,
}

impl Admission {
    pub fn new(limits: ConnectionLimits) -> Arc<Admission> {
        Arc::new(Admission {
            limits,
            counts: Mutex::new(Counts::default()),
        })
    }

    /// Counts a connection from `ip` in, or says which limit it would break.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<Admitted, Refused> {
        let per_ip = self
            .limits
            .overrides
            .iter()
            .find(|(address, _)| *address == ip)
            .map_or(self.limits.per_ip, |(_, limit)| *limit);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= self.limits.total {
            return Err(Refused::Total(self.limits.total));
        }
        let from_ip = counts.by_ip.entry(ip).or_insert(0);
        if *from_ip >= per_ip {
            let refused = Refused::PerIp(per_ip);
            if *from_ip == 0 {
                counts.by_ip.remove(&ip);
            }
            return Err(refused);
        }
        *from_ip += 1;
        counts.total += 1;
        Ok(Admitted {
            admission: self.clone(),
            ip,
        })
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .total
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self
            .admission
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(from_ip) = counts.by_ip.get_mut(&self.ip) {
            *from_ip -= 1;
            if *from_ip == 0 {
                counts.by_ip.remove(&self.ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn admission(total: usize, per_ip: usize, overrides: Vec<(IpAddr, usize)>) -> Arc<Admission> {
        Admission::new(ConnectionLimits {
            total,
            per_ip,
            overrides,
        })
    }

    #[test]
    fn a_closed_connection_gives_its_place_back() {
        let door = admission(2, 2, vec![]);
        let first = door.admit(HOME).unwrap();
        let _second = door.admit(HOME).unwrap();
        assert_eq!(door.admit(AWAY).err(), Some(Refused::Total(2)));
        drop(first);
        assert_eq!(door.open(), 1);
        assert!(door.admit(AWAY).is_ok());
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let door = admission(10, 1, vec![(AWAY, 0)]);
        let _home = door.admit(HOME).unwrap();
        assert_eq!(door.admit(HOME).err(), Some(Refused::PerIp(1)));
        assert_eq!(door.admit(AWAY).err(), Some(Refused::PerIp(0)));
        assert_eq!(door.open(), 1);
    }
}
