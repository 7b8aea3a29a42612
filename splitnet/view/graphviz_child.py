"""Draw DOT text of standard input with pygraphviz: `FORMAT ENGINE [ARGUMENT ...]`."""

import sys

import pygraphviz


def main(kind: str, engine: str, *arguments: str) -> None:
    """Lay a graph out and write the picture; labels of lines lie above all lines."""
    options = " ".join(arguments)
    graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
    if engine == "nop1":
        sizes = [(n, n.attr["width"], n.attr["height"]) for n in graph.nodes()]
        graph.layout(prog=engine, args=options)
        for node, wide, tall in sizes:  # the layout added the double edge of outputs
            node.attr.update(width=wide, height=tall)
        for edge in graph.edges():
            label, place = edge.attr["xlabel"], edge.attr["xlp"]
            if label and place:
                look = {"shape": "plain", "fixedsize": "false", "style": ""}
                # Drawn smaller than it was placed: sizes are rounded on the way.
                label = label.replace('CELLPADDING="2"', 'CELLPADDING="1"')
                look |= {"tooltip": " ", "label": f"<{label}>", "pos": place}
                graph.add_node(f"label-{edge.attr['id']}", **look)
            edge.attr["xlabel"] = ""
        engine = "nop2"
    sys.stdout.buffer.write(graph.draw(format=kind, prog=engine, args=options))


if __name__ == "__main__":
    main(*sys.argv[1:])
