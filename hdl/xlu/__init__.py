"""The cross-lane unit: what moves words between lanes and sublanes, or reduces over lanes."""
