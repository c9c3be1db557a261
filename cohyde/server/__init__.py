"""The HTTP and MCP server around a live retriever."""
