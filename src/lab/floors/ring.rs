//! The same through the broker's own runtime: small and long writes and flushes by the ring, and a
//! hop between two executors that wait for each other.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::device::{BLOCK, STREAM_REQUEST, Scratch, advance};
use super::{Floor, FloorPlan, Most, SAMPLES_MAX, latency, noise, rate, size, without_direct};
use crate::rt::fs::{AlignedBuf, File, OpenOptions};
use crate::rt::lane::{LaneReceiver, LaneSender, pair};
use crate::rt::{RingPlan, run_ring};

type Ends = (LaneSender<u64>, LaneReceiver<u64>);

/// What the first executor found; the second only answers.
type Answer = io::Result<Most>;

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
    let Some(directory) = &plan.directory else {
        return Ok((floors, None));
    };
    floors.push(flushed(plan, directory).await?);
    let what = "the ring's floors past the page cache";
    without_direct(floors, what, directory, direct(plan, directory).await)
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

async fn direct(plan: &FloorPlan, directory: &Path) -> io::Result<Vec<Floor>> {
    let scratch = Scratch::in_directory(directory, "ring-direct");
    let file = File::open(&scratch.path, OpenOptions::CREATE.direct()).await?;
    let mut request = Some(AlignedBuf::gathered(&[&noise(STREAM_REQUEST)]));
    let (mut position, mut end) = (0, 0);
    let streamed = times(plan.share(6), async || {
        let at = advance(&mut position, STREAM_REQUEST);
        end = end.max(position);
        write(&file, at, &mut request).await
    });
    let streamed = streamed.await?;
    file.sync_data().await?;
    let len = plan.write_bytes.max(1).next_multiple_of(BLOCK);
    let mut small = Some(AlignedBuf::gathered(&[&noise(len)]));
    position = 0;
    let written = times(plan.share(6), async || {
        let mut at = advance(&mut position, len);
        // Over blocks that are there already, as for the plain thread.
        if at + len as u64 > end {
            (at, position) = (0, len as u64);
        }
        write(&file, at, &mut small).await
    });
    let written = written.await?;
    Ok(vec![
        latency(
            "device_write_ring",
            format!(
                "O_DIRECT write of {} over written blocks by the ring",
                size(len)
            ),
            &written,
        ),
        rate(
            "device_stream_write_ring",
            format!(
                "O_DIRECT writes one after the other by the ring, {} each",
                size(STREAM_REQUEST)
            ),
            STREAM_REQUEST,
            &streamed,
        ),
    ])
}

/// Writes a buffer that comes back for the next write.
async fn write(file: &File, at: u64, buffer: &mut Option<AlignedBuf>) -> io::Result<()> {
    let Some(full) = buffer.take() else {
        return Err(io::Error::other("a write kept its buffer"));
    };
    let (written, back) = file.write_aligned_at(at, full).await;
    *buffer = Some(back);
    written
}
