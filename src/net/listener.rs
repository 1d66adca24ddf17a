//! Accepts connections of one listener on one shard. Every shard binds every listener's port
//! (SO_REUSEPORT), so the kernel spreads connections and no accept crosses a core. Never reads
//! from a connection.

use super::admission::Admission;
use super::connection::{self, ConnectionSettings};
use crate::broker::Peer;
use crate::rt;
use crate::rt::net::Listener;
use crate::shard::Shard;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed accept (out of file descriptors): the condition needs time to pass and
/// must not turn into a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `listener` until the shard drains.
pub async fn run(
    shard: Rc<Shard>,
    mut listener: Listener,
    name: Rc<str>,
    settings: ConnectionSettings,
    admission: Arc<Admission>,
) {
    let local = listener.local_addr();
    loop {
        let accepted = {
            let accept = std::pin::pin!(listener.accept());
            let drained = std::pin::pin!(shard.drained());
            match rt::select2(accept, drained).await {
                rt::Either2::First(accepted) => accepted,
                rt::Either2::Second(()) => return,
            }
        };
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(listener = %name, %error, "accept failed");
                rt::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match admission.admit(remote.ip()) {
            Ok(place) => {
                let peer = Rc::new(Peer::new(
                    shard.connections().next_id(),
                    name.clone(),
                    local,
                    remote,
                ));
                rt::spawn(connection::serve(
                    shard.clone(),
                    stream,
                    peer,
                    settings,
                    place,
                ));
            }
            Err(refused) => {
                tracing::warn!(listener = %name, %remote, %refused, "connection refused");
                drop(stream);
            }
        }
    }
}
