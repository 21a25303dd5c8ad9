"""The agent of a workspace.

`coordinator` turns accepted runs into turns; `turn/` is one turn, `record/` what is stored of it, `asks/`
permissions and questions. `spans` is the seam for tracing, `otel` its OpenTelemetry version.
"""
