# The image, from the source: one static binary on nothing, for a user without rights. It needs no shell, no certificates (the
# web's roots are in the binary) and no file that is written.
#
#   docker build -t tokometer .
#   docker run --read-only -p 8000:8000 -p 9464:9464 tokometer run --listen :8000 --upstream SERVER:8001
#
# Linked statically with glibc, whose allocator is the faster one and which needs no more than gcc; names are resolved by
# /etc/hosts and DNS, which its static form has within. One architecture per build: that of the machine.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN image/static.sh /out

FROM scratch
COPY --from=build /out/tokometer /tokometer
USER 65532:65532
EXPOSE 8000 9464
ENTRYPOINT ["/tokometer"]
CMD ["run"]
