//! Hidden commands for `sluice bench floods`: an HTTP server and its clients, with a connection for each request.

use std::io::{Read, Write, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate::error::Error;
use sluicegate_bench::floods::SERVING;

use super::options::turn_time;
use crate::signals::Signals;

/// Bytes of an answer's body.
const BODY: usize = 10_000;
/// Threads of the server and of the clients.
const THREADS: usize = 4;
/// The longest wait of a client for a connection, and for data.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait for the first connection: a filter that lets retransmitted SYNs pass delays that by a second
/// (RFC 6298, 2.1), and knows the client afterwards.
const FIRST_TIMEOUT: Duration = Duration::from_secs(4);
/// How often the server checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct ServerArgs {
    /// The TCP port
    #[arg(long, value_name = "PORT")]
    port: u16,
}

/// Serves until a signal arrives.
pub fn serve(args: &ServerArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let failed = |error| Error::system("listen on", format!("TCP port {}", args.port), error);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, args.port)).map_err(failed)?;
    let listener = Arc::new(listener);
    for _ in 0..THREADS {
        let listener = Arc::clone(&listener);
        thread::spawn(move || {
            // A client that fails counts itself.
            listener.incoming().flatten().for_each(|client| drop(answer(client)));
        });
    }
    writeln!(stdout(), "{SERVING}")?;
    while !signals.wait(Instant::now() + POLL_INTERVAL)? {}
    Ok(())
}

fn answer(mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&bytes[..read]),
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\nConnection: close\r\n\r\n");
    client.write_all(&[head.as_bytes(), &[b'x'; BODY]].concat())
}

#[derive(clap::Args)]
pub struct GetArgs {
    /// The server
    #[arg(value_name = "ADDRESS:PORT")]
    server: SocketAddr,

    /// How long to ask
    #[arg(long, value_name = "TIME", value_parser = turn_time)]
    seconds: Duration,
}

/// Asks once, then again and again; then prints how many requests were answered after the first.
pub fn get(args: &GetArgs) -> anyhow::Result<()> {
    // A failure is no result: the timed requests count theirs.
    let _ = request(args.server, FIRST_TIMEOUT);
    let begun = Instant::now();
    let (server, deadline) = (args.server, begun + args.seconds);
    let ask = move || {
        let (mut answered, mut failed) = (0_u64, 0_u64);
        while Instant::now() < deadline {
            match request(server, TIMEOUT) {
                Ok(true) => answered += 1,
                _ => failed += 1,
            }
        }
        (answered, failed)
    };
    let clients: Vec<_> = (0..THREADS).map(|_| thread::spawn(ask)).collect();
    let counts = clients.into_iter().map(|client| client.join().unwrap_or_default());
    let (requests, failed) = counts.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let elapsed_s = begun.elapsed().as_secs_f64();
    let result = json!({ "requests": requests, "failed": failed, "elapsed_s": elapsed_s });
    writeln!(stdout(), "{result}")?;
    Ok(())
}

/// Returns true if the answer is complete.
fn request(server: SocketAddr, timeout: Duration) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&server, timeout)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::with_capacity(2 * BODY);
    stream.read_to_end(&mut answer)?;
    Ok(answer.len() > BODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_whole_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let served = thread::spawn(move || answer(listener.accept().unwrap().0));
        assert!(request(server, TIMEOUT).unwrap());
        served.join().unwrap().unwrap();
    }
}
