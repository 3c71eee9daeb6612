"""LangGraph with its SQLite checkpointer: a graph of one node, and a thread, which is its unit of memory, per item."""

from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.case import Reading, Stopwatch
from bench.items import items, result


class State(TypedDict, total=False):
    item: dict[str, Any]
    result: dict[str, Any]


def fresh(place: Path, seed: int, count: int, *, save: str) -> Reading:
    worked = 0

    def handle(state: State) -> State:
        nonlocal worked
        worked += 1
        return {"result": result(state["item"])}

    builder = StateGraph(State)
    builder.add_node("handle", handle)
    builder.add_edge(START, "handle")
    builder.add_edge("handle", END)
    with SqliteSaver.from_conn_string(str(place / "langgraph.db")) as saver:
        graph = builder.compile(checkpointer=saver)
        with Stopwatch() as watch:
            for item in items(count, seed):
                thread = thread_of(item)
                if "result" not in graph.get_state(thread).values:
                    graph.invoke({"item": item}, thread, durability=save)
        assert all("result" in graph.get_state(thread_of(item)).values for item in items(count, seed))
    return Reading(items=count, seconds=watch.seconds, worked=worked)


def thread_of(item: dict[str, Any]) -> Any:
    return {"configurable": {"thread_id": item["id"]}}
