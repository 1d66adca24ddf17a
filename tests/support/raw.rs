//! A connection that sends exactly the bytes it is told to, and reads frames: for what stock
//! clients never send.

use bytes::{BufMut, Bytes, BytesMut};
use highwater::wire::{Message, Reader, Writer, api};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer, or the end of the connection, may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Raw {
    pub stream: TcpStream,
    correlation: i32,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        Raw::try_connect(address).expect("the broker listens")
    }

    /// The same where the broker may not listen yet.
    pub fn try_connect(address: SocketAddr) -> io::Result<Raw> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Ok(Raw {
            stream,
            correlation: 0,
        })
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    /// Sends `body` as one frame with a request header; returns the correlation id.
    pub fn send_body(&mut self, key: i16, version: i16, body: &[u8]) -> i32 {
        self.try_send_body(key, version, body)
            .expect("the broker reads")
    }

    /// The same for a connection that the broker may have closed already. One write: a second
    /// one would meet the reset that the first one provoked.
    pub fn try_send_body(&mut self, key: i16, version: i16, body: &[u8]) -> io::Result<i32> {
        self.correlation += 1;
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        frame.put_i16(key);
        frame.put_i16(version);
        frame.put_i32(self.correlation);
        frame.put_i16(4);
        frame.put_slice(b"test");
        if api::request_header_version(api::ApiKey(key), version) == Some(2) {
            frame.put_u8(0);
        }
        frame.put_slice(body);
        let size = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        self.stream.write_all(&frame)?;
        Ok(self.correlation)
    }

    pub fn send<Q: Message>(&mut self, request: &Q, version: i16) -> i32 {
        self.try_send(request, version).expect("the broker reads")
    }

    pub fn try_send<Q: Message>(&mut self, request: &Q, version: i16) -> io::Result<i32> {
        let mut writer = Writer::new();
        request
            .encode(&mut writer, version)
            .expect("a request of ours");
        let body = writer.into_bytes();
        self.try_send_body(Q::API_KEY, version, &body)
    }

    /// The next frame, or the error (closed, timed out).
    pub fn read_frame(&mut self) -> io::Result<Bytes> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size)?;
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        // In steps: whoever shares a core with the reader of a large answer gets it in between.
        for step in frame.chunks_mut(64 << 10) {
            self.stream.read_exact(step)?;
        }
        Ok(Bytes::from(frame))
    }

    pub fn read<R: Message>(&mut self, version: i16) -> (i32, R) {
        let frame = self.read_frame().expect("an answer");
        let mut reader = Reader::new(frame);
        let correlation = reader.i32("correlation_id").unwrap();
        if api::response_header_version(api::ApiKey(R::API_KEY), version) == Some(1) {
            reader.unknown_tagged_fields().unwrap();
        }
        let response = R::decode(&mut reader, version).expect("a well-formed answer");
        assert_eq!(reader.remaining(), 0, "bytes behind the answer");
        (correlation, response)
    }

    /// Sends and reads the one answer.
    pub fn call<Q: Message, R: Message>(&mut self, request: &Q, version: i16) -> R {
        let sent = self.send(request, version);
        let (answered, response) = self.read(version);
        assert_eq!(sent, answered, "the answer of another request");
        response
    }

    /// Whether the broker closes the connection without sending anything more.
    pub fn is_closed_by_peer(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
