//! The HTTP endpoint that a Prometheus server scrapes (`highwater.metrics.listener`). Runs on the
//! control executor; speaks as much HTTP/1.1 as a scrape needs, one answer a connection.

use super::metrics::Families;
use crate::rt;
use crate::rt::net::{Listener, Stream};
use bytes::{Bytes, BytesMut};
use std::time::Duration;

/// A request head larger than this is none of a scraper's.
const HEAD_MAX: usize = 8 * 1024;
/// A scraper that is slower than this is cut off.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves scrapes; before each, `refresh` brings the gauges up to date.
pub async fn run<F: Future<Output = ()>>(
    mut listener: Listener,
    families: Families,
    refresh: impl Fn() -> F,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                refresh().await;
                let page = families.scrape().unwrap_or_default();
                rt::spawn(async move {
                    // A scraper that went away scrapes again.
                    let _ = rt::timeout(PATIENCE, answer(stream, page)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "metrics: accept failed");
                rt::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(stream: Stream, page: String) -> std::io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut head = BytesMut::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        head.reserve(1024);
        if head.len() > HEAD_MAX || reader.read(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = if head.starts_with(b"GET /metrics ") {
        ("200 OK", page)
    } else {
        ("404 Not Found", "the metrics are at /metrics\n".to_owned())
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    writer.write_all(&[Bytes::from(text).into()]).await?;
    writer.shutdown().await
}
