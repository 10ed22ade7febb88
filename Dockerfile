# The server in an image: `docker build -t duewheel .`
# It listens on all addresses of the container, so it starts only with tokens and TLS, or if the listener is opened by name:
#   docker run --rm -p 127.0.0.1:7788:7788 -v duewheel:/data duewheel serve --insecure http
#   docker run -d -p 7788:7788 -v duewheel:/data -v /etc/duewheel:/etc/duewheel:ro \
#     -e DUEWHEEL_TOKENS=/etc/duewheel/tokens.toml -e DUEWHEEL_TLS_CERT=/etc/duewheel/tls.crt \
#     -e DUEWHEEL_TLS_KEY=/etc/duewheel/tls.key -e DUEWHEEL_SERVER=https://localhost:7788 -e DUEWHEEL_CA_CERT=/etc/duewheel/ca.crt duewheel
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p duewheel-server

FROM debian:bookworm-slim
COPY --from=build /src/target/release/duewheel /usr/local/bin/duewheel
# The user has no name and no shell; the same number is in deploy/kubernetes.
RUN install -d -m 0700 -o 10001 -g 10001 /data
USER 10001:10001
WORKDIR /data
VOLUME /data
ENV DUEWHEEL_DATA=/data DUEWHEEL_HTTP=0.0.0.0:7788 DUEWHEEL_BEANSTALK=off
EXPOSE 7788 11300 7800
STOPSIGNAL SIGTERM
# Asks /healthz at DUEWHEEL_SERVER, which needs no token.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["duewheel", "health"]
ENTRYPOINT ["duewheel"]
CMD ["serve"]
