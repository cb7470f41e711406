# The image of the Spark stages' service: Python as in the other services, PySpark, and Java from an image of its own.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG JAVA_IMAGE=eclipse-temurin:17-jre

FROM ${JAVA_IMAGE} AS java

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock requirements-build.lock deploy/images/lock.py deploy/images/packages.txt ./
COPY deploy/images/cache cache
RUN python3 -m venv /opt/tidemark \
 && python3 lock.py packages.txt all frames spark < requirements.lock > wanted.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes -r requirements-build.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes --no-build-isolation -r wanted.lock
COPY pyproject.toml README.md LICENSE ./
COPY tidemark tidemark
COPY services services
COPY shared shared
COPY spark_stages spark_stages
COPY deploy deploy
RUN /opt/tidemark/bin/pip install --no-deps --no-build-isolation .
# Compiled once: the root of a container is read-only.
RUN cd / && /opt/tidemark/bin/python -m tidemark.shared.compiled

FROM ${PYTHON_IMAGE}
# Where JAVA_IMAGE keeps its Java.
ARG JAVA_FOLDER=/opt/java/openjdk
RUN groupadd --gid 10001 tidemark \
 && useradd --uid 10001 --gid tidemark --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tidemark \
 && install -d -m 0750 -o tidemark -g tidemark /var/lib/tidemark/blobs
COPY --from=java ${JAVA_FOLDER} /opt/java/openjdk
COPY --from=build /opt/tidemark /opt/tidemark
COPY deploy/images/start.sh deploy/images/healthy.sh deploy/images/healthy.py /opt/tidemark/image/
# Spark keeps shuffles, and whatever else it writes, below /tmp: the root is read-only.
ENV TIDEMARK_SERVICE=spark \
    JAVA_HOME=/opt/java/openjdk \
    PATH=/opt/tidemark/bin:/opt/java/openjdk/bin:$PATH \
    PYTHONPATH=/computations \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SPARK_LOCAL_DIRS=/tmp/spark \
    TIDEMARK_SPARK_CLASSES=/opt/tidemark/classes/spark.jsa
# What its JVM loads, kept: a worker is there in half the time.
RUN python -m tidemark.spark_stages.archive && rm -rf /tmp/spark
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bin/sh", "/opt/tidemark/image/start.sh"]
