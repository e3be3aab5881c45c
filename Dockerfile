# The image, from source: one static binary without a base image, for a user without privileges. It needs no shell, no
# certificates (the public root certificates are compiled in) and no writable file.
#
#   docker build -t tokometer .
#   docker run --read-only -p 8000:8000 -p 9464:9464 tokometer run --listen :8000 --upstream SERVER:8001
#
# Statically linked with glibc, which has the faster allocator and needs only gcc. Names are resolved through /etc/hosts and
# DNS, which static glibc supports. One architecture per build: that of the machine.
FROM rust:1.98.1-bookworm@sha256:9a73a5088750b4c95158ab26629c854c3d6fc4b173cb7bc8079ad252d8ed7bfa AS build
WORKDIR /src
COPY . .
RUN image/static.sh /out

FROM scratch
COPY --from=build /out/tokometer /tokometer
# `kubectl debug POD --image IMAGE -- tokometer tap` finds the program by its name.
ENV PATH=/
USER 65532:65532
# Loopback is not reachable from outside the container: docker run --rm -it -p 9464:9464 IMAGE demo
ENV TOKOMETER_DEMO_ADMIN=:9464
EXPOSE 8000 9464
ENTRYPOINT ["/tokometer"]
CMD ["run"]
