"""Reports about a build, a campaign, kernels, a comparison or an audit, each written as one HTML file."""
