FROM rust:1.94-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin sluice

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/sluice --create-home sluice && chmod 700 /var/lib/sluice
COPY --from=build /src/target/release/sluice /usr/local/bin/sluice
USER sluice
WORKDIR /var/lib/sluice
VOLUME /var/lib/sluice
ENV SLUICE_DATA_DIR=/var/lib/sluice \
    SLUICE_LISTEN=0.0.0.0:8080 \
    SLUICE_OPS_LISTEN=0.0.0.0:9090 \
    SLUICE_LOG_FORMAT=json
EXPOSE 8080 9090
ENTRYPOINT ["sluice"]
CMD ["serve"]
