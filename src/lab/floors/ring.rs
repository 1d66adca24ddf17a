//! The same through the broker's own runtime: writes and flushes by the ring, and a hop between
//! two executors that wait for each other.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::device::{BLOCK, FILE_BYTES_MAX, Scratch, advance};
use super::{Floor, FloorPlan, SAMPLES_MAX, latency, noise, size};
use crate::rt::fs::{AlignedBuf, File, OpenOptions};
use crate::rt::lane::{LaneReceiver, LaneSender, pair};
use crate::rt::{RingPlan, run_ring};

type Ends = (LaneSender<u64>, LaneReceiver<u64>);

/// What the first executor found; the second only answers.
type Answer = io::Result<Vec<Floor>>;

pub(super) fn measure(plan: &FloorPlan) -> Answer {
    let (to, from_first) = pair(16);
    let (back, to_first) = pair(16);
    let ends = [Some((to, to_first)), Some((back, from_first))];
    let ends: Arc<Mutex<[Option<Ends>; 2]>> = Arc::new(Mutex::new(ends));
    let (sender, receiver) = mpsc::channel();
    let shards = RingPlan {
        shards: 2,
        ..RingPlan::default()
    };
    let plan = plan.clone();
    let ran = run_ring(shards, move |executor| {
        let (ends, sender, plan) = (ends.clone(), sender.clone(), plan.clone());
        async move {
            if executor.is_control() {
                return;
            }
            let taken = {
                let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
                ends[executor.index].take()
            };
            let Some(mut own) = taken else { return };
            if executor.index == 0 {
                let _ = sender.send(first(&plan, &mut own).await);
            } else {
                while let Some(value) = own.1.recv().await {
                    let _ = own.0.send(value).await;
                }
            }
        }
    });
    ran.map_err(io::Error::other)?;
    receiver
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the executors ended without an answer")))
}

async fn first(plan: &FloorPlan, ends: &mut Ends) -> Answer {
    let mut floors = vec![hop(plan, ends).await?];
    if let Some(directory) = &plan.directory {
        floors.push(flushed(plan, directory).await?);
        match direct(plan, directory).await {
            Ok(floor) => floors.push(floor),
            // As in `device`: no O_DIRECT here.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    Ok(floors)
}

/// [`super::times`], of work that waits.
async fn times(
    budget: Duration,
    mut work: impl AsyncFnMut() -> io::Result<()>,
) -> io::Result<Vec<Duration>> {
    let mut samples = Vec::new();
    let begun = Instant::now();
    loop {
        let since = Instant::now();
        work().await?;
        samples.push(since.elapsed());
        if begun.elapsed() >= budget || samples.len() == SAMPLES_MAX {
            return Ok(samples);
        }
    }
}

async fn hop(plan: &FloorPlan, ends: &mut Ends) -> io::Result<Floor> {
    let gone = || io::Error::other("the other executor is gone");
    let samples = times(plan.share(5), async || {
        ends.0.send(1).await.map_err(|_| gone())?;
        ends.1.recv().await.map(|_| ()).ok_or_else(gone)
    });
    Ok(latency(
        "channel_round_trip",
        "a value to another executor and back by two lanes, both waiting".to_owned(),
        &samples.await?,
    ))
}

async fn flushed(plan: &FloorPlan, directory: &Path) -> io::Result<Floor> {
    let scratch = Scratch::in_directory(directory, "ring-flushed");
    let file = File::open(&scratch.path, OpenOptions::CREATE).await?;
    let bytes = Bytes::from(noise(plan.write_bytes.max(1)));
    let mut position = 0;
    let samples = times(plan.share(14), async || {
        let at = advance(&mut position, bytes.len());
        file.write_all_at(at, vec![bytes.clone()]).await?;
        file.sync_data().await
    });
    let what = format!(
        "write of {} at the end of a file, and fdatasync by the ring",
        size(bytes.len())
    );
    Ok(latency("device_write_flush_ring", what, &samples.await?))
}

async fn direct(plan: &FloorPlan, directory: &Path) -> io::Result<Floor> {
    let scratch = Scratch::in_directory(directory, "ring-direct");
    let file = File::open(&scratch.path, OpenOptions::CREATE.direct()).await?;
    let len = plan.write_bytes.max(1).next_multiple_of(BLOCK);
    // Blocks that are there already, as for the plain thread.
    let blocks = AlignedBuf::gathered(&[&noise(DIRECT_ROOM.max(len))]);
    let room = blocks.len() as u64;
    debug_assert!(room <= FILE_BYTES_MAX);
    file.write_aligned_at(0, blocks).await.0?;
    file.sync_data().await?;
    let mut buffer = Some(AlignedBuf::gathered(&[&noise(len)]));
    let mut position = 0;
    let samples = times(plan.share(6), async || {
        let mut at = advance(&mut position, len);
        if at + len as u64 > room {
            (at, position) = (0, len as u64);
        }
        let Some(full) = buffer.take() else {
            return Err(io::Error::other("a write kept its buffer"));
        };
        let (written, back) = file.write_aligned_at(at, full).await;
        buffer = Some(back);
        written
    });
    let what = format!(
        "O_DIRECT write of {} over written blocks by the ring",
        size(len)
    );
    Ok(latency("device_write_ring", what, &samples.await?))
}

/// Bytes that are there before the direct writes go over them.
const DIRECT_ROOM: usize = 8 << 20;
