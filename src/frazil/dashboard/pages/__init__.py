"""The pages of the dashboard. `page(view)` of each module draws it."""

_FRAME = ("Html", "Selectbox", "Checkbox", "Button", "BidiComponent")
_CHART = ("ArrowVegaLiteChart", "loadVegaEmbed", "embed", "vega-interpreter")
_TABLE = ("ReadOnlyGrid",)
PATHS = {
    "overview": (*_FRAME, "Metric", *_CHART, *_TABLE),
    "services": (*_FRAME, "TextInput"),
    "logs": (*_FRAME, "TextInput", "Multiselect", "ButtonGroup"),
    "traces": (*_FRAME, "TextInput", "Multiselect", "ButtonGroup", *_CHART),
    "metric": (*_FRAME, "Multiselect", "ButtonGroup", *_CHART, *_TABLE),
    "sql": (*_FRAME,),
    "pipeline": (*_FRAME, "Metric", *_CHART, *_TABLE),
}
"""The pages in the order of the navigation, each with the elements of Streamlit that its first view contains.
The page of metrics is not at `/metrics`, which is for Prometheus.
"""
