# The server in an image: `docker build -t duewheel .`
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p duewheel-server

FROM debian:bookworm-slim
COPY --from=build /src/target/release/duewheel /usr/local/bin/duewheel
RUN useradd --system --home-dir /data --create-home duewheel
USER duewheel
WORKDIR /data
EXPOSE 7788 11300 7800
ENTRYPOINT ["duewheel"]
CMD ["serve"]
