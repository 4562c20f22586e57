"""The cross-lane unit: moves elements between lanes and sublanes, and reduces over lanes."""
