//! Two plain threads on the loopback: a message there and back, and a stream in one direction.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use super::{Floor, FloorPlan, latency, noise, rate, size, times};

/// What the stream's sender gives the kernel at once.
const STREAM_WRITE: usize = 64 << 10;
/// Bytes of one sample of the stream.
const STREAM_SAMPLE: usize = 16 << 20;

pub(super) fn measure(plan: &FloorPlan) -> io::Result<Vec<Floor>> {
    Ok(vec![round_trip(plan)?, stream(plan)?])
}

fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

fn round_trip(plan: &FloorPlan) -> io::Result<Floor> {
    let (mut near, mut far) = connected()?;
    let len = plan.message_bytes.max(1);
    // Ends when the near side is closed.
    let echo = thread::spawn(move || {
        let mut message = vec![0; len];
        while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
    });
    let message = noise(len);
    let mut answer = vec![0; len];
    let samples = times(plan.share(10), || {
        near.write_all(&message)?;
        near.read_exact(&mut answer)
    });
    drop(near);
    join(echo)?;
    Ok(latency(
        "loopback_round_trip",
        format!(
            "{} to a thread and back over TCP on the loopback",
            size(len)
        ),
        &samples?,
    ))
}

fn stream(plan: &FloorPlan) -> io::Result<Floor> {
    let (near, mut far) = connected()?;
    let mut sender = near.try_clone()?;
    let sending = thread::spawn(move || {
        let bytes = noise(STREAM_WRITE);
        while sender.write_all(&bytes).is_ok() {}
    });
    let mut buffer = vec![0; STREAM_WRITE];
    let mut receive = |bytes: usize| {
        let mut left = bytes;
        while left > 0 {
            match far.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left = left.saturating_sub(read),
            }
        }
        Ok(())
    };
    // Windows have grown and the sender runs.
    let warm = receive(STREAM_SAMPLE / 4);
    let samples = warm.and_then(|()| times(plan.share(10), || receive(STREAM_SAMPLE)));
    near.shutdown(std::net::Shutdown::Both)?;
    drop(far);
    join(sending)?;
    Ok(rate(
        "loopback_stream",
        format!(
            "one TCP connection on the loopback, {} a write, from one thread to another",
            size(STREAM_WRITE)
        ),
        STREAM_SAMPLE,
        &samples?,
    ))
}

fn join(thread: thread::JoinHandle<()>) -> io::Result<()> {
    thread
        .join()
        .map_err(|_| io::Error::other("a thread of the measurement panicked"))
}
