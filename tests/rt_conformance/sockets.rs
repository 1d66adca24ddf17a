//! Sockets: bytes arrive in order, ends and failures are seen.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use highwater::rt;
use highwater::rt::fs::{File, FileRange, OpenOptions};
use highwater::rt::net::{Listener, Piece, ReadHalf, Stream, WriteHalf};

use crate::support::{Env, on_both_bodies};

on_both_bodies!(
    an_echo_comes_back,
    both_halves_work_at_once,
    a_half_close_ends_only_one_direction,
    a_big_vectored_write_survives_a_slow_reader,
    a_reader_that_waits_for_much_gets_the_rest_as_well,
    ranges_of_a_file_are_sent_in_their_place,
    a_range_that_was_cut_off_ends_the_write_with_an_error,
    a_reset_is_an_error,
    a_refused_connection_is_an_error,
    a_port_in_use_is_an_error,
    shared_listeners_share_the_port,
    dropping_a_stream_ends_the_peers_read,
    dropping_an_accept_loses_nothing,
    a_dropped_listener_refuses,
    a_dropped_read_loses_nothing,
    closing_both_directions_ends_the_own_read,
    literal_addresses_resolve_to_themselves,
);

async fn pair(env: &Env) -> (Stream, Stream, Listener) {
    let mut listener = Listener::bind(env.addr).unwrap();
    let addr = listener.local_addr();
    assert_ne!(addr.port(), 0);
    let connecting = rt::spawn(async move { Stream::connect(addr).await.unwrap() });
    let (server, peer) = listener.accept().await.unwrap();
    let client = connecting.await;
    assert_eq!(peer, client.local_addr());
    assert_eq!(client.peer_addr(), addr);
    assert_eq!(server.peer_addr(), peer);
    (client, server, listener)
}

async fn read_exact(half: &mut ReadHalf, len: usize) -> Bytes {
    let mut buf = BytesMut::with_capacity(len);
    while buf.len() < len {
        assert_ne!(
            half.read(&mut buf).await.unwrap(),
            0,
            "stream ended at {} of {len}",
            buf.len()
        );
    }
    buf.freeze()
}

async fn echo(mut read: ReadHalf, mut write: WriteHalf) {
    loop {
        let mut buf = BytesMut::with_capacity(16384);
        if read.read(&mut buf).await.unwrap() == 0 {
            return;
        }
        write.write_all(&[buf.freeze().into()]).await.unwrap();
    }
}

async fn an_echo_comes_back(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (read, write) = server.split();
    let server = rt::spawn(echo(read, write));
    let (mut read, mut write) = client.split();
    for round in 0..200usize {
        let message = Bytes::from(vec![round as u8; 1 + round * 37]);
        write.write_all(&[message.clone().into()]).await.unwrap();
        assert_eq!(read_exact(&mut read, message.len()).await, message);
    }
    write.shutdown().await.unwrap();
    server.await;
}

async fn both_halves_work_at_once(env: Env) {
    const TOTAL: usize = 4 << 20;
    let (client, server, _listener) = pair(&env).await;
    let mut tasks = Vec::new();
    for stream in [client, server] {
        let (mut read, mut write) = stream.split();
        tasks.push(rt::spawn(async move {
            let chunk = Bytes::from(vec![1u8; 100_000]);
            let mut left = TOTAL;
            while left > 0 {
                let part = chunk.slice(..left.min(chunk.len()));
                left -= part.len();
                write.write_all(&[part.into()]).await.unwrap();
            }
            write.shutdown().await.unwrap();
        }));
        tasks.push(rt::spawn(async move {
            let mut total = 0;
            loop {
                let mut buf = BytesMut::with_capacity(65536);
                match read.read(&mut buf).await.unwrap() {
                    0 => break,
                    n => total += n,
                }
            }
            assert_eq!(total, TOTAL);
        }));
    }
    for task in tasks {
        task.await;
    }
}

async fn a_half_close_ends_only_one_direction(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (mut client_read, mut client_write) = client.split();
    let (mut server_read, mut server_write) = server.split();
    client_write
        .write_all(&[Bytes::from_static(b"last words").into()])
        .await
        .unwrap();
    client_write.shutdown().await.unwrap();
    assert_eq!(read_exact(&mut server_read, 10).await, &b"last words"[..]);
    let mut buf = BytesMut::with_capacity(10);
    assert_eq!(server_read.read(&mut buf).await.unwrap(), 0);
    assert_eq!(
        server_read.read(&mut buf).await.unwrap(),
        0,
        "the end stays the end"
    );
    server_write
        .write_all(&[Bytes::from_static(b"still here").into()])
        .await
        .unwrap();
    assert_eq!(read_exact(&mut client_read, 10).await, &b"still here"[..]);
    let error = client_write
        .write_all(&[Bytes::from_static(b"x").into()])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

async fn a_big_vectored_write_survives_a_slow_reader(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    // More parts than one call takes, sizes from 0 to 20 kB: about 15 MB, far above the socket's
    // buffers.
    let parts: Vec<Bytes> = (0..1500usize)
        .map(|i| Bytes::from(vec![(i % 251) as u8; (i * 7919) % 20_000]))
        .collect();
    let expected = parts.concat();
    let parts: Vec<Piece> = parts.into_iter().map(Piece::from).collect();
    let (_client_read, mut write) = client.split();
    let writing = rt::spawn(async move {
        write.write_all(&parts).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let (read, _server_write) = server.split();
    rt::sleep(Duration::from_millis(20)).await;
    assert!(
        !writing.is_finished(),
        "the write did not wait for the reader"
    );
    let got = read_slowly(read).await;
    assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
    writing.await;
}

/// All that comes, with pauses.
async fn read_slowly(mut read: ReadHalf) -> BytesMut {
    let mut got = BytesMut::new();
    let mut reads = 0;
    loop {
        got.reserve(200_000);
        if read.read(&mut got).await.unwrap() == 0 {
            return got;
        }
        reads += 1;
        if reads % 64 == 0 {
            rt::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What a reader is not woken for must still be there for the next one, and the end must wake it.
async fn a_reader_that_waits_for_much_gets_the_rest_as_well(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (_client_read, mut write) = client.split();
    let (mut read, _server_write) = server.split();
    let sizes = [1, 70_000, 3_000_000, 5, 200_000, 64 << 10, (64 << 10) - 1];
    let writing = rt::spawn(async move {
        for (at, size) in sizes.into_iter().enumerate() {
            let message = Bytes::from(vec![at as u8; size]);
            for start in (0..size).step_by(50_000) {
                let part = message.slice(start..size.min(start + 50_000));
                write.write_all(&[part.into()]).await.unwrap();
                if start % 400_000 == 0 {
                    rt::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        // Half of what the other side is promised.
        write
            .write_all(&[Bytes::from(vec![9; 500_000]).into()])
            .await
            .unwrap();
        write.shutdown().await.unwrap();
    });
    let mut buf = BytesMut::new();
    for (at, size) in sizes.into_iter().enumerate() {
        while buf.len() < size {
            let missing = size - buf.len();
            buf.reserve(missing);
            assert_ne!(read.read_towards(&mut buf, missing).await.unwrap(), 0);
        }
        assert!(buf.split_to(size).iter().all(|byte| *byte == at as u8));
    }
    loop {
        let missing = 1_000_000 - buf.len();
        buf.reserve(missing);
        if read.read_towards(&mut buf, missing).await.unwrap() == 0 {
            break;
        }
    }
    assert_eq!(buf.len(), 500_000);
    writing.await;
}

/// A file whose every position can be told from its bytes.
async fn numbered_file(env: &Env, bytes: u32) -> (File, Bytes) {
    let file = File::open(env.dir.join("numbered"), OpenOptions::CREATE)
        .await
        .unwrap();
    let contents: Vec<u8> = (0..bytes / 4).flat_map(u32::to_be_bytes).collect();
    let contents = Bytes::from(contents);
    file.write_all_at(0, vec![contents.clone()]).await.unwrap();
    (file, contents)
}

/// The simulator says of one range in four that it is not in memory.
fn cached_range(file: &File, position: u64, len: usize) -> FileRange {
    (0..200)
        .find_map(|_| file.cached_range(position, len))
        .expect("just written")
}

async fn ranges_of_a_file_are_sent_in_their_place(env: Env) {
    let (file, contents) = numbered_file(&env, 9_000_000).await;
    let (client, server, _listener) = pair(&env).await;
    let (_client_read, mut write) = client.split();
    let head = Bytes::from_static(b"head");
    let parts: Vec<Piece> = vec![
        head.clone().into(),
        Piece::File(cached_range(&file, 3, 8_900_000)),
        head.clone().into(),
        head.clone().into(),
        Piece::File(cached_range(&file, 5_000_000, 100)),
        Piece::File(cached_range(&file, 7_000_000, 300_000)),
    ];
    // What is sent later needs neither the handle nor the name.
    drop(file);
    let expected = [
        &head[..],
        &contents[3..8_900_003],
        &head,
        &head,
        &contents[5_000_000..5_000_100],
        &contents[7_000_000..7_300_000],
    ]
    .concat();
    let writing = rt::spawn(async move {
        write.write_all(&parts).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let (read, _server_write) = server.split();
    rt::sleep(Duration::from_millis(20)).await;
    let got = read_slowly(read).await;
    assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
    writing.await;
}

async fn a_range_that_was_cut_off_ends_the_write_with_an_error(env: Env) {
    let (file, _) = numbered_file(&env, 400_000).await;
    let (client, server, _listener) = pair(&env).await;
    let (_client_read, mut write) = client.split();
    let range = cached_range(&file, 0, 400_000);
    file.set_len(250_000).await.unwrap();
    let (read, _server_write) = server.split();
    let reading = rt::spawn(read_slowly(read));
    let error = write.write_all(&[Piece::File(range)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    write.shutdown().await.unwrap();
    assert!(reading.await.len() <= 250_000);
}

async fn a_reset_is_an_error(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (mut read, mut write) = server.split();
    let reading = rt::spawn(async move {
        let mut buf = BytesMut::with_capacity(10);
        read.read(&mut buf).await
    });
    rt::sleep(Duration::from_millis(2)).await;
    client.reset();
    assert_eq!(
        reading.await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    let error = write
        .write_all(&[Bytes::from_static(b"x").into()])
        .await
        .unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ),
        "{error:?}"
    );
}

async fn a_refused_connection_is_an_error(env: Env) {
    let listener = Listener::bind(env.addr).unwrap();
    let addr = listener.local_addr();
    drop(listener);
    rt::sleep(Duration::from_millis(20)).await;
    let error = Stream::connect(addr).await.expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn a_port_in_use_is_an_error(env: Env) {
    let first = Listener::bind(env.addr).unwrap();
    let error = Listener::bind(first.local_addr()).expect_err("the port is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    // Also once it is shared.
    let _second = Listener::bind_shared(first.local_addr()).unwrap();
    let error = Listener::bind(first.local_addr()).expect_err("the port is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

async fn shared_listeners_share_the_port(env: Env) {
    let mut first = Listener::bind(env.addr).unwrap();
    let addr = first.local_addr();
    let mut second = Listener::bind_shared(addr).unwrap();
    assert_eq!(second.local_addr(), addr);
    let counts = Rc::new([Cell::new(0), Cell::new(0)]);
    let mut accepting = Vec::new();
    let in_first = counts.clone();
    accepting.push(rt::spawn(async move {
        loop {
            let _stream = first.accept().await.unwrap();
            in_first[0].set(in_first[0].get() + 1);
        }
    }));
    let in_second = counts.clone();
    accepting.push(rt::spawn(async move {
        loop {
            let _stream = second.accept().await.unwrap();
            in_second[1].set(in_second[1].get() + 1);
        }
    }));
    for _ in 0..64 {
        let stream = Stream::connect(addr).await.unwrap();
        let (mut read, _write) = stream.split();
        // The server drops it at once: wait for that.
        let mut buf = BytesMut::with_capacity(1);
        assert_eq!(read.read(&mut buf).await.unwrap(), 0);
    }
    let (a, b) = (counts[0].get(), counts[1].get());
    assert_eq!(a + b, 64);
    assert!(a > 0 && b > 0, "one listener got everything: {a} and {b}");
}

async fn dropping_a_stream_ends_the_peers_read(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (mut read, _write) = server.split();
    let reading = rt::spawn(async move {
        let mut buf = BytesMut::with_capacity(10);
        read.read(&mut buf).await.unwrap()
    });
    let (client_read, client_write) = client.split();
    drop(client_read);
    rt::sleep(Duration::from_millis(5)).await;
    assert!(!reading.is_finished(), "closed while one half was alive");
    drop(client_write);
    let ended = rt::timeout(Duration::from_secs(2), reading).await;
    assert_eq!(ended, Ok(0));
}

async fn dropping_an_accept_loses_nothing(env: Env) {
    let mut listener = Listener::bind(env.addr).unwrap();
    let addr = listener.local_addr();
    for round in 0..20 {
        // Begin to accept, give up, let a connection come in meanwhile.
        let none = rt::timeout(Duration::from_micros(200), listener.accept()).await;
        assert!(none.is_err());
        let connecting = rt::spawn(async move { Stream::connect(addr).await.unwrap() });
        let mut accepted = None;
        for _ in 0..1000 {
            match rt::timeout(Duration::from_micros(round * 10), listener.accept()).await {
                Ok(Ok(connection)) => {
                    accepted = Some(connection);
                    break;
                }
                Ok(Err(error)) => panic!("{error}"),
                Err(rt::Elapsed) => {}
            }
            rt::yield_now().await;
        }
        let client = connecting.await;
        let (_, peer) = accepted.expect("the connection was lost");
        assert_eq!(peer, client.local_addr());
    }
}

async fn a_dropped_listener_refuses(env: Env) {
    let listener = Listener::bind(env.addr).unwrap();
    let addr: SocketAddr = listener.local_addr();
    let client = Stream::connect(addr).await.unwrap();
    drop(listener);
    // The connection that nobody took ends instead of hanging.
    let (mut read, _write) = client.split();
    let mut buf = BytesMut::with_capacity(1);
    let ended = rt::timeout(Duration::from_secs(2), read.read(&mut buf))
        .await
        .expect("hangs");
    assert!(matches!(ended, Ok(0) | Err(_)));
    assert!(Stream::connect(addr).await.is_err());
    // The address is free again.
    Listener::bind(addr).unwrap();
}

async fn a_dropped_read_loses_nothing(env: Env) {
    let (client, server, _listener) = pair(&env).await;
    let (mut read, _server_write) = server.split();
    let (_client_read, mut write) = client.split();
    let mut got = BytesMut::with_capacity(100_000);
    let writing = rt::spawn(async move {
        for i in 0..100u8 {
            write
                .write_all(&[Bytes::from(vec![i; 10]).into()])
                .await
                .unwrap();
            rt::sleep(Duration::from_micros(100)).await;
        }
        write.shutdown().await.unwrap();
    });
    let mut dropped = 0;
    loop {
        match rt::timeout(Duration::from_micros(30), read.read(&mut got)).await {
            Ok(Ok(0)) => break,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => panic!("{error}"),
            Err(rt::Elapsed) => dropped += 1,
        }
    }
    writing.await;
    assert!(dropped > 0, "no read was dropped: the case tests nothing");
    let expected: Vec<u8> = (0..100u8).flat_map(|i| [i; 10]).collect();
    assert_eq!(got, expected);
}

async fn closing_both_directions_ends_the_own_read(env: Env) {
    let (client, _server, _listener) = pair(&env).await;
    let (mut read, mut write) = client.split();
    let reading = rt::spawn(async move {
        let mut buf = BytesMut::with_capacity(10);
        read.read(&mut buf).await
    });
    rt::sleep(Duration::from_millis(1)).await;
    write.close_both();
    let ended = rt::timeout(Duration::from_secs(2), reading)
        .await
        .expect("the read hangs");
    assert!(matches!(ended, Ok(0) | Err(_)));
}

async fn literal_addresses_resolve_to_themselves(_env: Env) {
    let found = rt::net::resolve("127.0.0.1", 9092).await.unwrap();
    assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 9092))]);
    let found = rt::net::resolve("::1", 1).await.unwrap();
    assert!(found[0].is_ipv6());
}
