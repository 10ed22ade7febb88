//! The examples do what they say.

#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/order_timeout.rs"]
mod order_timeout;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/retry_http.rs"]
mod retry_http;

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_not_paid_is_closed_and_no_other() {
    assert_eq!(order_timeout::run().await.unwrap(), [43]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_made_again_until_it_succeeds() {
    assert_eq!(retry_http::run().await.unwrap(), 3);
}
