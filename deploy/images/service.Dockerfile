# An image for each of Tidemark's Python services: the build argument SERVICE names it (coordinator, source, operator, sink, control, gateway).
# Plain syntax: BuildKit and the engine's own builder both take it. Spark has an image of its own (spark.Dockerfile).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG SERVICE

FROM ${PYTHON_IMAGE} AS build
# The installer's own settings, for a place without a way to the public index; deploy/README.md says how they are used.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock requirements-build.lock deploy/images/lock.py deploy/images/packages.txt ./
COPY deploy/images/cache cache
# packages.txt: what all services have, and why.
RUN python3 -m venv /opt/tidemark \
 && python3 lock.py packages.txt all < requirements.lock > wanted.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes -r requirements-build.lock \
 && /opt/tidemark/bin/pip install --find-links cache --require-hashes --no-build-isolation -r wanted.lock
# What only some have lies in folders beside it, so that all images share one layer of the rest; Python passes over folders that are not there.
RUN for part in iceberg delta frames plots; do \
      python3 lock.py packages.txt $part < requirements.lock > wanted.lock \
   && /opt/tidemark/bin/pip install --find-links cache --require-hashes --no-deps --target /opt/parts/$part -r wanted.lock \
   && echo /opt/tidemark/$part >> "$(/opt/tidemark/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parts.pth" \
   || exit 1; \
    done
COPY pyproject.toml README.md LICENSE ./
COPY tidemark tidemark
COPY services services
COPY shared shared
COPY spark_stages spark_stages
COPY deploy deploy
RUN /opt/tidemark/bin/pip install --no-deps --no-build-isolation .
# Compiled once: the root of a container is read-only.
RUN cd / && /opt/tidemark/bin/python -m tidemark.shared.compiled

FROM ${PYTHON_IMAGE} AS coordinator
# The folders exist in the image, so that a new volume on one of them belongs to the service's user.
RUN groupadd --gid 10001 tidemark \
 && useradd --uid 10001 --gid tidemark --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tidemark \
 && install -d -m 0750 -o tidemark -g tidemark /var/lib/tidemark/blobs /var/lib/tidemark/out /var/lib/tidemark/tokens \
    /var/lib/tidemark/scratch /var/lib/tidemark/keys /var/lib/tidemark/gateway
COPY --from=build /opt/tidemark /opt/tidemark
COPY deploy/images/start.sh deploy/images/healthy.sh deploy/images/healthy.py /opt/tidemark/image/

FROM coordinator AS gateway

FROM coordinator AS operator
COPY --from=build /opt/parts/frames /opt/tidemark/frames

FROM coordinator AS source
COPY --from=build /opt/parts/iceberg /opt/tidemark/iceberg

FROM source AS sink
COPY --from=build /opt/parts/delta /opt/tidemark/delta

FROM sink AS control
COPY --from=build /opt/parts/frames /opt/tidemark/frames
COPY --from=build /opt/parts/plots /opt/tidemark/plots

FROM ${SERVICE}
# Documents' own classes are looked for in /computations.
ARG SERVICE
ENV TIDEMARK_SERVICE=${SERVICE} \
    PATH=/opt/tidemark/bin:$PATH \
    PYTHONPATH=/computations \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bin/sh", "/opt/tidemark/image/start.sh"]
