# A Kafka broker of one node on any Java image, from the jars whose digests deploy/broker/jars.lock holds.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG JAVA_IMAGE=eclipse-temurin:17-jre

# Begins as the services' images do, so that nothing is installed twice.
FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock requirements-build.lock deploy/images/lock.py deploy/images/packages.txt ./
COPY deploy/images/cache cache
RUN python3 -m venv /opt/tidemark \
 && python3 lock.py packages.txt all < requirements.lock > wanted.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes -r requirements-build.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes --no-build-isolation -r wanted.lock
COPY tidemark tidemark
COPY services/__init__.py services/__init__.py
COPY services/local services/local
COPY deploy/broker/jars.lock deploy/broker/jars.lock
RUN /opt/tidemark/bin/python -m tidemark.services.local.jars --cache cache/kafka --into /opt/kafka/jars

FROM ${JAVA_IMAGE}
RUN groupadd --gid 10001 kafka \
 && useradd --uid 10001 --gid kafka --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kafka \
 && install -d -m 0750 -o kafka -g kafka /var/lib/kafka
COPY --from=build /opt/kafka/jars /opt/kafka/jars
COPY deploy/broker/container.properties deploy/broker/console.properties /opt/kafka/
COPY deploy/images/kafka.sh deploy/images/kafka-healthy.sh /opt/kafka/
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bin/bash", "/opt/kafka/kafka.sh"]
