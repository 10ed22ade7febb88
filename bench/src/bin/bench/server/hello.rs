//! The limit of the HTTP library: a server that reads each request whole and answers with the same few bytes.

use std::convert::Infallible;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// As long as a real answer.
const ANSWER: &[u8] = b"{\"id\":\"1\",\"queue\":\"bench\",\"key\":null,\"due_at\":\"2026-01-01T00:00:00.000Z\",\"generation\":1,\"created\":true,\"durability\":\"none\"}";

/// Serves until it is killed.
pub(crate) fn serve() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on http://{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let _ =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}
